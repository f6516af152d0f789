"""The output of a finished run, in either format, and the answers of an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from batchrun.config import OutputFormat
from batchrun.errors import RunError, UsageError
from batchrun.records import Answer, Result
from batchrun.sink import jsonl
from batchrun.sink.atomic import remove, replacing
from batchrun.sink.explode import Fields
from batchrun.sink.journal import Journal

if TYPE_CHECKING:
    import pyarrow as pa

# Whether an answer is right; None where that cannot be said.
Correct = Callable[[Result], bool | None]

_ENDINGS: dict[str, OutputFormat] = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def named_format(path: Path) -> OutputFormat | None:
    """The format of a file that its name's ending says, if it says one."""
    return _ENDINGS.get(path.suffix.lower())


def output_format(path: Path, asked: OutputFormat | None = None) -> OutputFormat:
    """The format asked for, or the one that the name's ending says; a folder that is there holds
    parts. UsageError if neither says it."""
    is_folder = path.is_dir()
    if is_folder and asked not in (None, "parts"):
        raise UsageError(f"{path}: is a folder, and can only hold parts, not {asked}")
    found = asked or ("parts" if is_folder else named_format(path))
    if found is None:
        raise UsageError(
            f"cannot tell the format of the output {path}: end its name in .parquet or .jsonl, "
            "in / for a folder of parts, or pass --format"
        )
    return found


def load_format(kind: OutputFormat) -> None:
    """Loads what writing `kind` takes: a broken library, or too little memory for it, shows at
    the start of a run and not after its last row."""
    if kind != "jsonl":
        from batchrun.sink import parquet  # noqa: F401


def journal_path(output: Path) -> Path:
    return output.with_name(output.name + ".journal")


def errors_path(output: Path) -> Path:
    """Where the failed rows of `output` are listed."""
    return output.with_name(output.stem + ".errors.jsonl")


def write_output(
    journal: Journal,
    path: Path,
    kind: OutputFormat,
    kept_schema: pa.Schema | None = None,
    report: str | None = None,
    explode: Fields = (),
    *,
    correct: Correct | None = None,
    drops_removed: bool = False,
) -> None:
    """Writes the run's results to `path` and its failed rows to `errors_path(path)`; a Parquet
    file carries the `report` along. `correct` says whether an answer is right.

    In a folder of parts, `drops_removed` takes out of it what the input no longer has. Files
    appear whole, in place of any earlier ones; without failed rows there is no errors file.
    In Parquet the fields of JSON answers named in `explode` get columns.
    Raises RunError when they cannot be written or a row has neither answer nor error yet.
    """
    pending = journal.counts().pending
    if pending:
        raise RunError(f"{pending} rows have no result yet; run again to finish them")
    _write_errors(journal, errors_path(path))
    results = _judged(journal.results(), correct)
    if kind == "jsonl":
        with replacing(path) as file:
            jsonl.write(results, file)
        return
    from batchrun.sink import parquet, parts

    if kind == "parts":
        plan = parts.PartsPlan(kept_schema, report, explode, drops_removed)
        parts.write(journal, results, path, plan)
        return
    with replacing(path) as file:
        parquet.write(results, journal.kept(), file, kept_schema, report, explode)


def _judged(results: Iterator[Result], correct: Correct | None) -> Iterator[Result]:
    if correct is None:
        return results
    return (replace(result, correct=correct(result)) for result in results)


def read_answers(path: Path, kind: OutputFormat, name: str | None = None) -> Iterator[Answer]:
    """The answers in an earlier output, streamed; raises UsageError when it is no such file. `name`
    is what users know it by."""
    try:
        yield from _read(path, kind)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{name or path} exists and is not an output of batchrun in {kind} form ({error}); "
            "choose another output, or pass --fresh to replace it"
        ) from error


def _read(path: Path, kind: OutputFormat) -> Iterator[Answer]:
    if kind == "jsonl":
        return jsonl.read(path)
    from batchrun.sink import parquet, parts

    return parts.read(path) if kind == "parts" else parquet.read(path)


def _write_errors(journal: Journal, path: Path) -> None:
    failures = journal.failures()
    first = next(failures, None)
    if first is None:
        remove(path)
        return
    with replacing(path) as file:
        jsonl.write_failures(chain([first], failures), file)
