"""The results in an output, whatever its format, as they were when it was written.

Kept values come as their JSON forms (see `encode.dumps_kept`), as they do from the journal. A
Parquet output does not say whether a row was a chat: there, all are taken for chats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from batchrun.errors import RowError, UsageError
from batchrun.records import Result, Row
from batchrun.sink import jsonl
from batchrun.sink.encode import dumps_kept
from batchrun.sink.output import named_format

if TYPE_CHECKING:
    import pyarrow as pa


class Results(Protocol):
    """What can be written as an output: `results` in order, and ahead of them their kept values."""

    def results(self) -> Iterator[Result]: ...

    def kept(self) -> Iterator[dict[str, Any]]: ...


class ParquetResults:
    """The results in the Parquet file at `path`."""

    def __init__(self, path: Path):
        self._path = path

    def schema(self) -> pa.Schema:
        """Of the kept columns."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from batchrun.sink.parquet import OURS

        with _explained(self._path):
            fields = pq.read_schema(self._path)
        return pa.schema([field for field in fields if field.name not in OURS])

    def results(self) -> Iterator[Result]:
        from batchrun.sink.parquet import COLUMNS

        kept = self.schema().names
        for record in self._records([*COLUMNS.names, *kept]):
            yield _result(record, _json_forms({name: record[name] for name in kept}))

    def kept(self) -> Iterator[dict[str, Any]]:
        for record in self._records(self.schema().names):
            yield _json_forms(record)

    def _records(self, columns: list[str]) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet as pq

        from batchrun.sink.parquet import typed_batches

        with _explained(self._path), pq.ParquetFile(self._path) as file:
            for batch in typed_batches(file, columns):
                yield from batch.to_pylist()


class JsonlResults:
    """The results in the JSONL file at `path`."""

    def __init__(self, path: Path):
        self._path = path

    def schema(self) -> pa.Schema | None:
        """Nothing is known of the kept columns' types."""
        return None

    def results(self) -> Iterator[Result]:
        with _explained(self._path), open(self._path, "rb") as file:
            for text in file:
                yield from jsonl.line_results(json.loads(text))

    def kept(self) -> Iterator[dict[str, Any]]:
        for result in self.results():
            yield result.row.kept


class PartsResults:
    """The results in all parts in the folder at `path`, rows counted through."""

    def __init__(self, path: Path):
        from batchrun.sink.parts import part_paths

        self._parts = [ParquetResults(part) for part in part_paths(path)]

    def schema(self) -> pa.Schema:
        """Of the kept columns of all parts together."""
        import pyarrow as pa

        schemas = [part.schema() for part in self._parts]
        return pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])

    def results(self) -> Iterator[Result]:
        index = -1
        for part in self._parts:
            for result in part.results():
                # Only the first choice begins a row.
                index += result.answer is None or result.answer.choice == 0
                yield replace(result, row=replace(result.row, index=index))

    def kept(self) -> Iterator[dict[str, Any]]:
        for part in self._parts:
            yield from part.kept()


def open_results(path: Path) -> ParquetResults | JsonlResults | PartsResults:
    """The results in the output at `path`. Raises UsageError, also while they are read, where it is
    none."""
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    if path.is_dir():
        return PartsResults(path)
    is_parquet = named_format(path) == "parquet" or _begins_as_parquet(path)
    return ParquetResults(path) if is_parquet else JsonlResults(path)


def _begins_as_parquet(path: Path) -> bool:
    """Of a name that says nothing, as --format lets outputs have."""
    with _explained(path), open(path, "rb") as file:
        return file.read(4) == b"PAR1"


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """pyarrow's errors are ValueErrors or OSErrors too."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UsageError(f"{path}: cannot be read as an output of batchrun: {reason}") from error


def _json_forms(kept: dict[str, Any]) -> dict[str, Any]:
    forms: dict[str, Any] = json.loads(dumps_kept(kept))
    return forms


def _result(record: dict[str, Any], kept: dict[str, Any]) -> Result:
    from batchrun.sink.parquet import is_answered, to_answer

    row = Row(record["row"], "", 0, record["custom_id"], kept)
    key, moment = record["request_key"], record["finished_at"] / 1e6
    if is_answered(record):
        return Result(row, to_answer(record), None, moment, True, key, record["correct"])
    error = RowError(
        record["error_code"], record["error_message"] or "", status=record["status_code"]
    )
    return Result(row, None, error, moment, True, key)
