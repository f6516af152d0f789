"""Results as flat records: the columns of the Parquet output by their names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import IO, Any

from batchrun.records import Result
from batchrun.sink.encode import clean, dumps, microseconds
from batchrun.sink.kept import plan_columns
from batchrun.sink.parquet import COLUMNS, fixed_values


def to_record(result: Result) -> dict[str, Any]:
    """The fixed columns, in JSON's own types."""
    values = dict(zip(COLUMNS.names, fixed_values(result), strict=True))
    values["finished_at"] = _iso(result.finished_at)
    return values


def write_csv(
    results: Iterable[Result], kept_values: Iterable[dict[str, Any]], file: IO[bytes]
) -> None:
    """Writes a header and a line per result; what is no text or number is written as JSON.
    `kept_values` come once more, beforehand, in `results`."""
    kept = plan_columns(kept_values, None, COLUMNS.names)
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow([*COLUMNS.names, *(column.field.name for column in kept)])
    for result in results:
        values = [*to_record(result).values(), *(result.row.kept.get(c.source) for c in kept)]
        writer.writerow(map(_cell, values))
    text.detach()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    return dumps(value) if isinstance(value, (bool, list, dict)) else value


def _iso(seconds: float) -> str | None:
    if not microseconds(seconds):
        return None  # a JSONL output does not say when a row failed
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
