"""Parquet, streamed in small batches of rows."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchrun import remote
from batchrun.errors import RowError, RunError
from batchrun.source.files import RawRow

_BATCH_BYTES = 2**24
_MAX_BATCH_ROWS = 1024
# What is read at a time from a column, so that a row group is never whole in memory.
_BUFFER_BYTES = 2**20


def read(path: str, columns: list[str] | None = None) -> Iterator[RawRow]:
    """One record per row, with plain Python values of `columns`, or of all columns.

    A row's line is its 1-based number. Raises RunError where the file cannot be read.
    """
    with _open(path) as file:
        rows = _rows(file, columns)
        for line, row in enumerate(_guarded(rows, path), start=1):
            yield RawRow(line, row)


def read_schema(path: str) -> pa.Schema:
    """The file's columns with the types that `read` gives their values.

    Raises RunError where the file cannot be read.
    """
    with _open(path) as file:
        return _plain_schema(file.schema_arrow)


def count(path: str) -> int:
    """The number of rows, from the file's metadata. Raises RunError as `read` does."""
    with _open(path) as file:
        return int(file.metadata.num_rows)


@contextmanager
def _open(path: str) -> Iterator[pq.ParquetFile]:
    with ExitStack() as stack:
        try:
            source = stack.enter_context(_elsewhere(path)) if remote.is_url(path) else path
            file = pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise RunError(f"{path}: cannot be read as Parquet: {_first_line(error)}") from error
        yield stack.enter_context(file)


def _elsewhere(url: str) -> io.BufferedReader:
    """Unbuffered: Arrow asks for `_BUFFER_BYTES` of one column after the other."""
    return remote.open_binary(url, buffer_bytes=1)


def _guarded(rows: Iterator[Any], path: str) -> Iterator[Any]:
    try:
        yield from rows
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path}: cannot be read to its end: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _rows(file: pq.ParquetFile, columns: list[str] | None) -> Iterator[dict[str, Any] | RowError]:
    for batch in file.iter_batches(_batch_rows(file.metadata), columns=columns):
        yield from _values(_plain_batch(batch))


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """Rows per batch, so that a batch of the largest rows keeps to `_BATCH_BYTES`."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    row_bytes = max((g.total_byte_size / max(g.num_rows, 1) for g in groups), default=1)
    return int(min(max(_BATCH_BYTES / max(row_bytes, 1), 1), _MAX_BATCH_ROWS))


def _values(batch: pa.RecordBatch) -> list[dict[str, Any] | RowError]:
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):
        # One value that Python cannot hold must not take its neighbours along.
        return [_value(batch.slice(i, 1)) for i in range(batch.num_rows)]


def _value(row: pa.RecordBatch) -> dict[str, Any] | RowError:
    values: dict[str, Any] = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            values[name] = column[0].as_py()
        except (ValueError, OverflowError) as error:
            return RowError(
                "invalid_request", f"{name} cannot be read: {_first_line(error)}", param=name
            )
    return values


def _plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = _plain_schema(batch.schema)
    # Not safe: what is finer than a microsecond is cut off.
    columns = [
        column if column.type == field.type else column.cast(field.type, safe=False)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_plain_field(field) for field in schema])


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of what Python's own values can hold: times in microseconds, no dictionaries."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if kind in _COARSER:
        return _COARSER[kind]
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    rebuild = _LISTS.get(kind.id)
    if rebuild is not None:
        return rebuild(_plain_field(kind.value_field))
    return kind


_COARSER = {pa.time64("ns"): pa.time64("us"), pa.duration("ns"): pa.duration("us")}
# List views are left alone: Arrow's cast of them has lost values.
_LISTS: dict[int, Callable[[pa.Field], pa.DataType]] = {
    pa.lib.Type_LIST: pa.list_,
    pa.lib.Type_LARGE_LIST: pa.large_list,
}
