"""`batchrun merge`: the outputs of all shards of an input as one, with one report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from heapq import merge as merged
from pathlib import Path, PurePath

from batchrun import log, remote, sink
from batchrun.config import OutputFormat
from batchrun.errors import RunError, UsageError
from batchrun.evaluation import Judge, tally
from batchrun.paths import check_output, files_beside
from batchrun.report.compare import differences
from batchrun.report.reading import Report, read_report
from batchrun.report.summary import Summary, page_path, report_path, report_text, write_report
from batchrun.report.together import figures, together
from batchrun.sink import errors_path, jsonl
from batchrun.sink.atomic import remove, replacing
from batchrun.sink.joined import JoinedResults
from batchrun.sink.results import JsonlResults, ParquetResults, open_results

# What runs were asked for that decides their answers and columns, but for what is each one's own.
_DECISIVE = (
    *("source.", "model.", "media.video_fps", "model_map", "kv_bits"),
    *("evaluation", "explode", "reasoning_budget", "seed"),
)
_OF_EACH = ("source.inputs", "source.shard")


@dataclass(frozen=True, slots=True)
class _Part:
    """The output of a shard: as the user named it, and where it can be read."""

    name: str
    path: Path
    results: ParquetResults | JsonlResults
    report: Report


def merge(parts: Sequence[str | Path], output: str | Path) -> Summary:
    """Joins the outputs `parts`, one for each shard, in `output`, in the format that its name ends
    in; all may be URLs. Raises UsageError where they are no shards of one input, or one is not
    there; RunError where a row is missing or there twice."""
    place = remote.place(str(output))
    if place.path.is_dir() or str(output).endswith("/"):
        raise UsageError(f"{output}: is a folder; name a file in it")
    names = [remote.given(str(part)) for part in parts]
    check_output(place, names)
    kind = sink.named_format(place.path)
    if kind is None:
        raise UsageError(f"cannot tell the format of {output}: end its name in .parquet or .jsonl")
    with ExitStack() as stack:
        stack.enter_context(sink.hold(place.path, name=place.url))
        found = [stack.enter_context(_part(name)) for name in names]
        _check_shards(found)
        mirror = remote.Mirror(place.path, place.url, files_beside(place.path))
        mirror.replace()
        summary = _write(found, place, kind)
        mirror.publish()
        mirror.clear()
        return summary


@contextmanager
def _part(name: str) -> Iterator[_Part]:
    with remote.borrowed(name, along=(report_path, errors_path)) as path:
        results = open_results(path)
        if not isinstance(results, ParquetResults | JsonlResults):
            raise UsageError(f"{name}: is a folder; give shards files as outputs, and name those")
        report = read_report(path)
        if report["status"] not in ("completed", "completed_with_failures"):
            raise UsageError(f"{name}: is of a run that did not finish; run it again")
        yield _Part(name, path, results, report)


def _check_shards(parts: Sequence[_Part]) -> None:
    """Raises UsageError unless each shard is there once."""
    found: dict[int, str] = {}
    num_shards = _shard(parts[0])[1]
    for part in parts:
        number, count = _shard(part)
        if count != num_shards:
            raise UsageError(f"{part.name}: is one of {count} shards, the first of {num_shards}")
        if number in found:
            raise UsageError(f"{part.name} and {found[number]} are both shard {number}/{count}")
        _check_asked_alike(parts[0], part)
        found[number] = part.name
    missing = sorted(set(range(1, num_shards + 1)) - found.keys())
    if missing:
        names = ", ".join(f"{number}/{num_shards}" for number in missing)
        raise UsageError(f"shard {names} is missing: name its output too")


def _check_asked_alike(first: _Part, part: _Part) -> None:
    if _input_names(part) != _input_names(first):
        inputs = ", ".join(_input_names(part))
        raise UsageError(f"{part.name}: has rows of another input than {first.name} ({inputs})")
    # The names of kept columns may be others in Parquet, and not be told apart there.
    if type(part.results) is not type(first.results):
        raise UsageError(
            f"{part.name}: is not in the format of {first.name}; bring all to one with batchrun"
            " export"
        )
    if part.report["model"] != first.report["model"]:
        raise UsageError(f"{part.name}: has answers of another model than the first")
    for name, (asked, other) in differences([first.report, part.report]):
        if name.startswith(_DECISIVE) and not name.startswith(_OF_EACH):
            raise UsageError(
                f"{part.name}: was run with other flags than {first.name} ({name}: {other}, not"
                f" {asked}); run it again with the same"
            )


def _input_names(part: _Part) -> list[str]:
    """Each machine may have the files in a folder of its own."""
    inputs = part.report["configuration"]["source"]["inputs"]
    return [PurePath(remote.name_of(path)).name for path in inputs]


def _shard(part: _Part) -> tuple[int, int]:
    shard = part.report["configuration"]["source"].get("shard")
    if shard is None:
        raise UsageError(f"{part.name}: is no shard, but the output of a whole run")
    return shard[0], shard[1]


def _write(parts: Sequence[_Part], place: remote.Place, kind: OutputFormat) -> Summary:
    reports, output = [part.report for part in parts], place.path
    num_rows = sum(report["request_counts"]["total"] for report in reports)
    results = JoinedResults([part.results for part in parts], num_rows)
    judge = _judge(results, reports[0])
    evaluation = None if judge is None else tally(results.results(), judge)
    summary = together(reports, place.url or str(output), evaluation)
    text = report_text(summary, figures(reports))
    with replacing(output) as file:
        if kind == "jsonl":
            jsonl.write(results.results(), file)
        else:
            from batchrun.sink import parquet

            parquet.write(results.results(), results.kept(), file, results.schema(), text)
    failed = [part.path for part in parts if part.report["request_counts"]["failed"]]
    _write_errors([errors_path(path) for path in failed], errors_path(output))
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
