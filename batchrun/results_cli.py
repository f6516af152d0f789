"""The commands `batchrun show` and `batchrun export`: an output to read, or in another format."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice

import click

from batchrun import options, remote
from batchrun.errors import UsageError
from batchrun.paths import check_file
from batchrun.records import Answer, Result
from batchrun.report.render import one_line, printable

_FORMS = ("text", "json")


@click.command(cls=options.GroupedCommand, short_help="Print the rows of an output.")
@click.argument("output", type=click.Path(), metavar="OUTPUT")
@click.option("--failed", is_flag=True, help="Only rows that failed.")
@click.option("--wrong", is_flag=True, help="Only answers that are not as --expected had them.")
@click.option(
    "--row", "rows", type=int, multiple=True, metavar="N", help="Only this row. Repeatable."
)
@click.option(
    "--custom-id", "ids", multiple=True, metavar="ID", help="Only rows with this id. Repeatable."
)
@click.option("--limit", type=int, metavar="N", help="At most so many answers.  [default: all]")
@click.option(
    "--form",
    type=click.Choice(_FORMS),
    help="text to read, or a line of JSON each.  [default: text on a terminal, else json]",
)
def show(
    output: str,
    failed: bool,
    wrong: bool,
    rows: tuple[int, ...],
    ids: tuple[str, ...],
    limit: int | None,
    form: str | None,
) -> None:
    """Print the answers of OUTPUT, or what its rows failed with, so that one can read them.

    Rows count from 0, as in the column `row`. NO_COLOR in the environment turns colours off.
    """
    from batchrun.sink.results import open_results

    as_text = form == "text" or (form is None and sys.stdout.isatty())
    with remote.borrowed(output) as path:
        results = open_results(path).results()
        found = (
            result
            for result in (_wrong(output, results) if wrong else results)
            if (not failed or result.error is not None)
            and (not rows or result.row.index in rows)
            and (not ids or result.row.custom_id in ids)
        )
        for result in islice(found, limit):
            click.echo(_text(result) if as_text else _json(result), color=_may_color())


@click.command(cls=options.GroupedCommand, short_help="Write an output in another format.")
@click.argument("output", type=click.Path(), metavar="OUTPUT")
@click.option("-o", "--output", "target", required=True, metavar="FILE", help="Where it goes.")
def export(output: str, target: str) -> None:
    """Write the results in OUTPUT once more, in the format that FILE's name ends in: .parquet,
    .jsonl (OpenAI's batch output lines) or .csv.

    A Parquet output does not say which rows were completions: as .jsonl, all look like chats.
    Texts go into a .csv as they are: spreadsheets take one that begins with =, +, - or @ for a
    formula, so do not open there what you do not trust.
    """
    from batchrun.sink.export import export as write

    source, goal = remote.given(output), remote.given(target)
    if source == goal or _is_one_file(source, goal):
        raise UsageError(f"{goal}: is the output itself; choose another file")
    with remote.lent(goal) as written:
        check_file(written)
        with remote.borrowed(source) as read:
            count = write(read, written)
    click.echo(f"Written: {goal}, {count:,} answers and failures", err=True)


def _is_one_file(one: str, other: str) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _wrong(output: str, results: Iterable[Result]) -> Iterator[Result]:
    is_judged = False
    for result in results:
        is_judged |= result.correct is not None
        if result.correct is False:
            yield result
    if not is_judged:
        raise UsageError(f"{output}: says of no answer whether it is right; run with --expected")


def _json(result: Result) -> str:
    from batchrun.sink.records import to_record

    return json.dumps(to_record(result) | {"input": result.row.kept})


def _text(result: Result) -> str:
    given = {name: value for name, value in result.row.kept.items() if value is not None}
    kept = (f"  {one_line(name)}: {one_line(str(value))}" for name, value in given.items())
    return "\n".join([_head(result), *kept, *_body(result), ""])


def _head(result: Result) -> str:
    row = result.row
    parts = [f"row {row.index}"] if row.custom_id is None else [f"row {row.index}", row.custom_id]
    if result.answer is None:
        return one_line(" · ".join(parts)) + " · " + click.style("FAILED", fg="red", bold=True)
    answer = result.answer
    if answer.choice:
        parts.append(f"choice {answer.choice}")
    tokens = f"{answer.prompt_tokens:,} + {answer.completion_tokens:,} tokens"
    end = f"{answer.finish_reason} · {tokens} · {answer.seconds:.2f} s"
    head = click.style(one_line(" · ".join(parts)), bold=True) + f" · {end}"
    return head if result.correct is None else f"{head} · {_verdict(result.correct)}"


def _verdict(is_correct: bool) -> str:
    return click.style("correct", fg="green") if is_correct else click.style("WRONG", fg="red")


def _body(result: Result) -> Iterator[str]:
    if result.error is not None:
        yield f"{result.error.code}: {one_line(result.error.message)}"
    if result.answer is not None:
        if result.answer.reasoning:
            yield click.style(printable(result.answer.reasoning), dim=True)
        yield printable(result.answer.text)
        yield from _calls(result.answer.tool_calls or [])
        yield from _scores(result.answer)


def _calls(calls: Iterable[object]) -> Iterator[str]:
    for call in calls:
        yield printable(json.dumps(call, ensure_ascii=False))


def _scores(answer: Answer) -> Iterator[str]:
    """What was asked for about given texts."""
    if answer.choice_probs is not None:
        probs = sorted(answer.choice_probs.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{one_line(choice)} {100 * prob:.1f} %" for choice, prob in probs)
        yield click.style(f"choices: {shares}", dim=True)
    if answer.logprob is not None:
        greedy = {True: ", greedy", False: ", not greedy", None: ""}[answer.is_greedy]
        yield click.style(f"log-probability: {answer.logprob:.4f}{greedy}", dim=True)


def _may_color() -> bool | None:
    """None lets click look whether stdout is a terminal."""
    return False if os.environ.get("NO_COLOR") else None
