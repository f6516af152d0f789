"""The Parquet output: one row per choice, the columns below and then the kept ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchrun.records import Answer, Result
from batchrun.sink.arrays import make_array, make_timestamps
from batchrun.sink.encode import clean, dumps, microseconds, parse_stop, stop_text
from batchrun.sink.explode import Fields
from batchrun.sink.exploded import exploded_columns, parsed_fields
from batchrun.sink.kept import Column, plan_columns

COLUMNS = pa.schema(
    [
        ("row", pa.int64()),
        ("custom_id", pa.string()),
        ("choice", pa.int32()),
        ("text", pa.string()),
        ("reasoning", pa.string()),
        ("tool_calls", pa.string()),
        ("parsed", pa.string()),
        ("choice_probs", pa.string()),
        ("finish_reason", pa.string()),
        ("stop_reason", pa.string()),
        ("logprobs", pa.string()),
        ("prompt_logprobs", pa.string()),
        ("logprob", pa.float64()),
        ("is_greedy", pa.bool_()),
        ("correct", pa.bool_()),
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("disk_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
        ("reasoning_tokens", pa.int32()),
        ("seconds", pa.float64()),
        ("status_code", pa.int32()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
        ("model", pa.string()),
        ("request_key", pa.string()),
        ("finished_at", pa.timestamp("us", tz="UTC")),
    ]
)
# In parts alone.
ROW_KEY = pa.field("row_key", pa.string())

# Every column that is not a kept one.
OURS = frozenset([*COLUMNS.names, ROW_KEY.name])

_VERSION = {"batchrun": json.dumps({"version": 1})}
_REPORT = "batchrun.report"

# A row group ends at whichever comes first; a batch is what is in memory as Python objects.
_GROUP_ROWS = 8192
_GROUP_BYTES = 64 * 2**20
BATCH_ROWS = 128

_OPTIONAL = (
    "prompt_logprobs",
    "logprob",
    "is_greedy",
    "reasoning_tokens",
    "reasoning",
    "tool_calls",
    "parsed",
    "choice_probs",
    "stop_reason",
    "logprobs",
)
_NEEDED = (
    "request_key",
    "choice",
    "text",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "disk_tokens",
    "completion_tokens",
    "seconds",
    "model",
    "finished_at",
)


@dataclass(frozen=True, slots=True)
class Extra:
    """A column that follows from the results."""

    field: pa.Field
    value: Callable[[Result], Any]


def write(
    results: Iterator[Result],
    kept_values: Iterable[dict[str, Any]],
    file: IO[bytes],
    kept_schema: pa.Schema | None = None,
    report: str | None = None,
    explode: Fields = (),
    extras: Sequence[Extra] = (),
) -> None:
    """Writes `results`, whose kept values come once more, beforehand, in `kept_values`;
    `kept_schema` holds their columns' types where known, and `explode` names the fields of JSON
    answers that get columns. `extras` follow the fixed columns, and `report` goes into the file's
    metadata."""
    fields = exploded_columns(explode, OURS)
    taken = [*OURS, *(column.field.name for column in fields)]
    kept = plan_columns(kept_values, kept_schema, taken)
    added = [*(extra.field for extra in extras), *(column.field for column in (*fields, *kept))]
    schema = pa.schema([*COLUMNS, *added], _metadata(report))
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(_batches(results, extras, fields, kept, schema)):
            writer.write_table(group, row_group_size=_GROUP_ROWS)


def read(path: Path) -> Iterator[Answer]:
    """The answers of an earlier output; raises ValueError or OSError if it is none."""
    try:
        with pq.ParquetFile(path) as file:
            for record in _records(file, (*_NEEDED, *_OPTIONAL)):
                if is_answered(record):
                    yield to_answer(record)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


def read_report(path: Path) -> str | None:
    """The report that the file carries; raises OSError or pa.ArrowException if it is unreadable."""
    metadata = pq.read_schema(path).metadata or {}
    text = metadata.get(_REPORT.encode())
    return None if text is None else text.decode()


def _metadata(report: str | None) -> dict[str, str]:
    return _VERSION if report is None else _VERSION | {_REPORT: clean(report)}


def _batches(
    results: Iterator[Result],
    extras: Sequence[Extra],
    fields: list[Column],
    kept: list[Column],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    while batch := list(islice(results, BATCH_ROWS)):
        *columns, moments = zip(*map(fixed_values, batch), strict=True)
        *types, moment_type = COLUMNS.types
        arrays = [make_array(*column) for column in zip(columns, types, strict=True)]
        arrays.append(make_timestamps(moments, moment_type))
        arrays += [pa.array(map(extra.value, batch), extra.field.type) for extra in extras]
        values = [parsed_fields(result.answer) for result in batch] if fields else []
        arrays += [column.array(values) for column in fields]
        rows = [result.row.kept for result in batch]
        arrays += [column.array(rows) for column in kept]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
            rows = size = 0
    if held:
        yield pa.Table.from_batches(held)


def fixed_values(result: Result) -> tuple[Any, ...]:
    """One row of the fixed columns, in their order; the moment in microseconds."""
    row, answer, error = result.row, result.answer, result.error
    moment = microseconds(result.finished_at)
    if answer is None:
        assert error is not None
        nothing = (None,) * 18
        problem = (error.status, error.code, error.message)
        return (row.index, row.custom_id, 0, *nothing, *problem, None, result.key, moment)
    return (
        row.index,
        row.custom_id,
        answer.choice,
        answer.text,
        answer.reasoning,
        _json(answer.tool_calls),
        answer.parsed,
        _json(answer.choice_probs),
        answer.finish_reason,
        stop_text(answer.stop_reason),
        _json(answer.logprobs),
        _json(answer.prompt_logprobs),
        answer.logprob,
        answer.is_greedy,
        result.correct,
        answer.prompt_tokens,
        answer.cached_tokens,
        answer.disk_tokens,
        answer.completion_tokens,
        answer.reasoning_tokens,
        answer.seconds,
        200,
        None,
        None,
        answer.model,
        answer.key,
        moment,
    )


def _json(value: Any) -> str | None:
    return None if value is None else dumps(value)


def is_answered(record: dict[str, Any]) -> bool:
    """Whether a row of the fixed columns has an answer."""
    return all(record[name] is not None for name in _NEEDED)


def _records(file: pq.ParquetFile, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for batch in typed_batches(file, columns):
        yield from batch.to_pylist()


def typed_batches(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """`columns`, the fixed ones as the types that they had whatever another program has made of
    them since, but for moments, which are microseconds. Raises ValueError where one is missing."""
    missing = set(columns) & set(COLUMNS.names) - set(file.schema_arrow.names)
    if missing:
        raise ValueError(f"it has no column {min(missing)}")
    # In one thread: this is read once, beside the model, and threads take memory of their own.
    for batch in file.iter_batches(1024, columns=list(columns), use_threads=False):
        arrays = [_typed(name, batch.column(name)) for name in batch.schema.names]
        yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _typed(name: str, values: pa.Array) -> pa.Array:
    if name not in COLUMNS.names:
        return values
    values = values.cast(COLUMNS.field(name).type)
    return values.cast(pa.int64()) if name == "finished_at" else values


def to_answer(record: dict[str, Any]) -> Answer:
    """The answer in a row of the fixed columns."""
    return Answer(
        key=record["request_key"],
        choice=record["choice"],
        text=record["text"],
        finish_reason=record["finish_reason"],
        stop_reason=parse_stop(record["stop_reason"]),
        prompt_tokens=record["prompt_tokens"],
        cached_tokens=record["cached_tokens"],
        disk_tokens=record["disk_tokens"],
        completion_tokens=record["completion_tokens"],
        seconds=record["seconds"],
        model=record["model"],
        finished_at=record["finished_at"] / 1e6,
        reasoning=record["reasoning"],
        tool_calls=_parsed(record["tool_calls"]),
        logprobs=_parsed(record["logprobs"]),
        parsed=record["parsed"],
        choice_probs=_parsed(record["choice_probs"]),
        prompt_logprobs=_parsed(record["prompt_logprobs"]),
        logprob=record["logprob"],
        is_greedy=record["is_greedy"],
        reasoning_tokens=record["reasoning_tokens"],
    )


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)
