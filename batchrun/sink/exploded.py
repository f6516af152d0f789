"""The fields of JSON answers as Parquet columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from batchrun.records import Answer
from batchrun.sink.encode import clean
from batchrun.sink.explode import Fields
from batchrun.sink.kept import Column

_LARGEST = 2**63 - 1


def exploded_columns(fields: Fields, taken: Iterable[str]) -> list[Column]:
    """A column for each field; a name in `taken` gets the prefix `parsed_`."""
    used = set(taken)
    columns = []
    for source, kind in fields:
        name = clean(source)
        while name in used:
            name = f"parsed_{name}"
        used.add(name)
        arrow, decode = _TYPES[kind]
        columns.append(Column(source, pa.field(name, arrow), decode))
    return columns


def parsed_fields(answer: Answer | None) -> dict[str, Any]:
    """The fields of an answer that is a JSON object; none where it is not."""
    value = None if answer is None or answer.parsed is None else json.loads(answer.parsed)
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    """JSON's integers may be written as 1.0, and have no largest one: those have no column."""
    return int(value) if abs(value) <= _LARGEST else None


def _real(value: Any) -> float | None:
    """JSON's numbers have no largest: those without a float have no column either."""
    try:
        return float(value)
    except OverflowError:
        return None


_TYPES: dict[str, tuple[pa.DataType, Callable[[Any], Any] | None]] = {
    "string": (pa.string(), clean),
    "integer": (pa.int64(), _whole),
    "number": (pa.float64(), _real),
    "boolean": (pa.bool_(), None),
}
