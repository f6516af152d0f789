"""`batchrun merge`: the outputs of all shards of an input as one, with one report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge as merged
from pathlib import Path

from batchrun import log, sink
from batchrun.config import OutputFormat
from batchrun.errors import RunError, UsageError
from batchrun.evaluation import Judge, tally
from batchrun.paths import check_output
from batchrun.remote import Place
from batchrun.report.compare import differences
from batchrun.report.reading import Report, read_report
from batchrun.report.summary import Summary, page_path, report_path, report_text, write_report
from batchrun.report.together import figures, together
from batchrun.sink import errors_path, jsonl
from batchrun.sink.atomic import remove, replacing
from batchrun.sink.joined import JoinedResults
from batchrun.sink.results import JsonlResults, ParquetResults, open_results

# What runs were asked for that decides their answers and columns, but for what is each one's own.
_DECISIVE = ("source.", "evaluation", "explode", "reasoning_budget", "seed")
_OF_EACH = ("source.inputs", "source.shard")


@dataclass(frozen=True, slots=True)
class _Part:
    path: Path
    results: ParquetResults | JsonlResults
    report: Report


def merge(paths: Sequence[Path], output: Path) -> Summary:
    """Joins the outputs at `paths`, one for each shard, in `output`, in the format that its name
    ends in. Raises UsageError where they are no shards of one input, or one is not there; RunError
    where a row is missing or there twice."""
    check_output(Place(output), map(str, paths))
    kind = sink.output_format(output)
    if kind == "parts":
        raise UsageError(f"{output}: is a folder; name a file in it")
    parts = [_part(path) for path in paths]
    _check_shards(parts)
    reports = [part.report for part in parts]
    num_rows = sum(report["request_counts"]["total"] for report in reports)
    results = JoinedResults([part.results for part in parts], num_rows)
    with sink.hold(output):
        return _write(results, parts, output, kind)


def _part(path: Path) -> _Part:
    results = open_results(path)
    if not isinstance(results, ParquetResults | JsonlResults):
        raise UsageError(f"{path}: is a folder; give shards files as outputs, and name those")
    report = read_report(path)
    if report["status"] not in ("completed", "completed_with_failures"):
        raise UsageError(f"{path}: is of a run that did not finish; run it again")
    return _Part(path, results, report)


def _check_shards(parts: Sequence[_Part]) -> None:
    """Raises UsageError unless each shard is there once."""
    found: dict[int, Path] = {}
    num_shards = _shard(parts[0])[1]
    for part in parts:
        number, count = _shard(part)
        if count != num_shards:
            raise UsageError(f"{part.path}: is one of {count} shards, the first of {num_shards}")
        if number in found:
            raise UsageError(f"{part.path} and {found[number]} are both shard {number}/{count}")
        _check_asked_alike(parts[0], part)
        found[number] = part.path
    missing = sorted(set(range(1, num_shards + 1)) - found.keys())
    if missing:
        names = ", ".join(f"{number}/{num_shards}" for number in missing)
        raise UsageError(f"shard {names} is missing: name its output too")


def _check_asked_alike(first: _Part, part: _Part) -> None:
    if part.report["model"] != first.report["model"]:
        raise UsageError(f"{part.path}: has answers of another model than the first")
    for name, (asked, other) in differences([first.report, part.report]):
        if name.startswith(_DECISIVE) and not name.startswith(_OF_EACH):
            raise UsageError(
                f"{part.path}: was run with other flags than {first.path} ({name}: {other}, not"
                f" {asked}); run it again with the same"
            )


def _shard(part: _Part) -> tuple[int, int]:
    shard = part.report["configuration"]["source"].get("shard")
    if shard is None:
        raise UsageError(f"{part.path}: is no shard, but the output of a whole run")
    return shard[0], shard[1]


def _write(
    results: JoinedResults, parts: Sequence[_Part], output: Path, kind: OutputFormat
) -> Summary:
    reports = [part.report for part in parts]
    judge = _judge(results, reports[0])
    evaluation = None if judge is None else tally(results.results(), judge)
    summary = together(reports, output, evaluation)
    text = report_text(summary, figures(reports))
    with replacing(output) as file:
        if kind == "jsonl":
            jsonl.write(results.results(), file)
        else:
            from batchrun.sink import parquet

            parquet.write(results.results(), results.kept(), file, results.schema(), text)
    errors = [errors_path(part.path) for part in parts if part.report["request_counts"]["failed"]]
    _write_errors(errors, errors_path(output))
    write_report(text, report_path(output))
    _write_page(text, page_path(output))
    return summary


def _judge(results: JoinedResults, report: Report) -> Judge | None:
    asked = report["configuration"]["evaluation"]
    if asked is None:
        return None
    return Judge.of_rows(asked["expected"], asked["metric"], results.kept())


def _write_errors(paths: Sequence[Path], target: Path) -> None:
    """The lists of failed rows as one, in the order of the rows."""
    if not paths:
        remove(target)
        return
    with replacing(target) as file:
        for line in merged(*map(_lines, paths), key=lambda line: json.loads(line)["row"]):
            file.write(line)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            yield from file
    except OSError as error:
        reason = f"{path}: cannot be read ({error.strerror}); it lists failed rows"
        raise UsageError(reason) from error


def _write_page(report: str, path: Path) -> None:
    from batchrun.report.page import render_page, write_page

    try:
        write_page(render_page(json.loads(report)), path)
    except RunError as error:
        log.say(f"Note: {error}")
