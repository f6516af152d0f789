"""The command `batchrun`: flags in, a run or a check, text and an exit status out."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem
from click_default_group import DefaultGroup

from batchrun import options
from batchrun.cache_cli import cache
from batchrun.errors import BatchrunError, UsageError
from batchrun.flags import Flags
from batchrun.records import Failure, Prompt, Request
from batchrun.report.render import one_line, render
from batchrun.report_cli import report
from batchrun.results_cli import export, show

if TYPE_CHECKING:
    from batchrun.check import AtHand

EXAMPLES = """\
\b
Examples:
  batchrun samples/questions.jsonl -o answers.parquet
  batchrun samples/reviews.csv -o labels.jsonl --keep id --max-tokens 4 \\
      --prompt "{{ review }} Positive or negative? Answer with one word."
  batchrun check samples/questions.jsonl
"""


class _Main(DefaultGroup):
    """The group whose help is that of its default command, and whose errors are one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _fail(error.format_message(), error.exit_code)
        except BatchrunError as error:
            _fail(str(error), error.exit_status)
        except KeyboardInterrupt:
            _fail("interrupted", 130)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, and what may follow the default one's name that nobody types."""
        found = [*super().shell_complete(ctx, incomplete), *run.shell_complete(ctx, incomplete)]
        return found if incomplete.startswith("-") else [*found, CompletionItem(incomplete, "file")]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "INPUT... -o OUTPUT [FLAGS]")
        formatter.write_usage(ctx.command_path, "check INPUT... [FLAGS]", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "show OUTPUT [FLAGS]", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "export OUTPUT -o FILE", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "report RUN... [FLAGS]", prefix=" " * 7)
        formatter.write_usage(ctx.command_path, "cache COMMAND [FLAGS]", prefix=" " * 7)
        run.format_help_text(ctx, formatter)
        options.write_groups([*run.params, *self.get_params(ctx)], ctx, formatter)
        self.format_commands(ctx, formatter)
        run.format_epilog(ctx, formatter)


def _fail(message: str, exit_status: int) -> None:
    click.echo(f"Error: {one_line(message)}", err=True)
    sys.exit(exit_status)


def _tell(summary: str) -> None:
    """The run is over: whether anybody can read of it on stderr changes nothing about it."""
    try:
        click.echo(summary, err=True)
    except OSError:
        # What is still buffered would fail again when the process ends, and be its exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@click.group(cls=_Main, default="run", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="batchrun", message="%(package)s %(version)s")
def main() -> None:
    """Run a file of requests through a language model."""


@click.command(
    cls=options.GroupedCommand,
    hidden=True,  # it is what happens without a command
    epilog=EXAMPLES,
)
@click.argument("inputs", nargs=-1, type=click.Path(), metavar="INPUT...")
@options.apply(options.INPUT)
@options.apply(options.MEDIA)
@options.apply(options.OUTPUT)
@options.apply(options.MODEL)
@options.apply(options.ANSWERS)
@options.apply(options.SPEED)
@options.apply(options.RUN)
def run(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    output: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Answer every row of INPUT with a language model, unattended, in the file OUTPUT.

    INPUT is JSONL (also .gz and .zst), Parquet or CSV, or - for JSONL on standard input; several
    files and quoted globs are read in order. A row is a chat or completion request, or data that
    --prompt turns into one. Typed again, the same command goes on where it was stopped, and later
    answers only new rows and those that failed.

    Exit status: 0 every row has an answer, 1 the run failed, 2 it cannot start as asked, 3 some
    rows failed, 4 stopped early and to be continued, 75 another run holds OUTPUT.
    """
    # Arrow's own allocator would take 30 MB more than what it holds. Read when Arrow is loaded.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    config = Flags(**flags).run_config((*inputs, *more_inputs), output)
    from batchrun.runner import execute

    summary = execute(config)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    elif summary.exit_status or not config.quiet:
        _tell(render(summary))
    sys.exit(summary.exit_status)


@click.command(
    cls=options.GroupedCommand,
    short_help="Say which rows are faulty, and answer none.",
)
@click.argument("inputs", nargs=-1, type=click.Path(), metavar="INPUT...")
@options.apply(options.INPUT)
@options.apply(options.MEDIA)
@options.apply(options.MODEL)
@options.apply(options.CHECK)
def check(
    inputs: tuple[str, ...],
    more_inputs: tuple[str, ...],
    with_plan: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Read every row of INPUT and print a line for each fault; no weights are loaded.

    Where the model is on this machine already, its chat template and context length count too;
    then --plan also forecasts what a run would compute, and what shared prefixes save.

    Exit status: 0 no faults, 2 it cannot start as asked, 3 some rows are faulty.
    """
    from batchrun.check import at_hand
    from batchrun.check import check as check_rows

    asked = Flags(**flags)
    source = asked.source_config((*inputs, *more_inputs))
    window = asked.checked_window()
    model = at_hand(asked.model_config(), asked.media_config())
    verdicts = _Verdicts(check_rows(source, model.preparer if model else None), as_json)
    if with_plan:
        click.echo(_plan(verdicts, window, model, as_json))
    else:
        deque(verdicts, maxlen=0)
    counts = f"{verdicts.faults:,} of {verdicts.rows:,}"
    click.echo(f"Faulty rows: {counts}. {_scope(model)}", err=True)
    sys.exit(3 if verdicts.faults else 0)


class _Verdicts:
    """Iterates over the prompts among checked rows; counts all, and prints each fault."""

    def __init__(self, checked: Iterable[Request | Prompt | Failure], as_json: bool):
        self.rows = self.faults = 0
        self._checked = checked
        self._as_json = as_json

    def __iter__(self) -> Iterator[Prompt]:
        for row in self._checked:
            self.rows += 1
            if isinstance(row, Failure):
                self.faults += 1
                click.echo(json.dumps(_record(row)) if self._as_json else _line(row))
            elif isinstance(row, Prompt):
                yield row


def _plan(prompts: Iterable[Prompt], window: int, model: AtHand | None, as_json: bool) -> str:
    from batchrun.plan import forecast
    from batchrun.report.forecast import forecast_record, render_forecast

    if model is None:
        raise UsageError(
            "--plan needs the model's tokenizer, and the model is not on this machine yet: run"
            " one row first (--limit 1), which fetches it, or name a local folder with --model"
        )
    planned = forecast(prompts, window=window)
    if as_json:
        return json.dumps({"plan": forecast_record(planned, model.decoder)})
    return render_forecast(planned, model.decoder)


def _line(failure: Failure) -> str:
    row, error = failure.row, failure.error
    return one_line(f"{row.file}:{row.line} {row.custom_id or '-'} {error.code} {error.message}")


def _record(failure: Failure) -> dict[str, Any]:
    """The validation record of OpenAI's batches, and which file and request it is about."""
    row, error = failure.row, failure.error
    return {
        "code": error.code,
        "line": row.line,
        "message": error.message,
        "param": error.param,
        "file": row.file,
        "custom_id": row.custom_id,
    }


def _scope(model: AtHand | None) -> str:
    if model is None:
        return (
            "Checked: form and fields; not images or prompt length, as the model is not on this"
            " machine yet."
        )
    media = ", images and video" if model.preparer.takes_media else ""
    return f"Checked: form, fields{media}, chat template and prompt length."


main.add_command(run)
main.add_command(check)
main.add_command(show)
main.add_command(export)
main.add_command(report)
main.add_command(cache)
