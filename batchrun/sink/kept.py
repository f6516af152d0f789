"""Input columns that are carried along, as Parquet columns of the output.

The journal holds their values as JSON forms (see `encode.dumps_kept`). Where the input's schema is
known they become again what they were; otherwise a column's type follows from its values.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from batchrun.errors import RunError
from batchrun.sink.arrays import make_array
from batchrun.sink.encode import clean, dumps

Decoder = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """The kept input column `source`, as the column `field` of the output."""

    source: str
    field: pa.Field
    decode: Decoder | None

    def array(self, rows: Iterable[dict[str, Any]]) -> pa.Array:
        """The column's values in `rows`; raises RunError when one does not fit its type."""
        try:
            return make_array([self._value(row.get(self.source)) for row in rows], self.field.type)
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
            raise RunError(
                f"the input column {self.source!r} holds a value that is no {self.field.type} "
                f"({error}); leave it out of --keep and run again: no answer is lost"
            ) from error

    def _value(self, value: Any) -> Any:
        return value if value is None or self.decode is None else self.decode(value)


def plan_columns(
    rows: Iterable[dict[str, Any]], schema: pa.Schema | None, taken: Iterable[str]
) -> list[Column]:
    """The columns for the kept values of `rows`, which are read once, and those of `schema`.

    A name in `taken`, or used by another column, gets the prefix `input_`.
    """
    known = {field.name: field.type for field in schema or () if not _has_extension(field.type)}
    kinds: dict[str, set[str]] = {name: set() for name in known}
    for row in rows:
        for name, value in row.items():
            kinds.setdefault(name, set()).add(_kind(value))
    names = _free_names(kinds, set(taken))
    return [
        _known_column(source, name, known[source])
        if source in known
        else _inferred_column(source, name, kinds[source] - {"null"})
        for source, name in names.items()
    ]


def _free_names(sources: Iterable[str], taken: set[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    wanted = {clean(source) for source in sources}
    for source in sources:
        name = clean(source)
        while name in taken or (name != clean(source) and name in wanted):
            name = f"input_{name}"
        taken.add(name)
        names[source] = name
    return names


def _known_column(source: str, name: str, kind: pa.DataType) -> Column:
    return Column(source, pa.field(name, kind), _decoder(kind))


def _inferred_column(source: str, name: str, kinds: set[str]) -> Column:
    for allowed, field_type, decode in _INFERRED:
        if kinds <= allowed:
            return Column(source, pa.field(name, field_type), decode)
    return Column(source, pa.field(name, pa.string()), dumps)


# In this order: a column without values is text.
_INFERRED: tuple[tuple[frozenset[str], pa.DataType, Decoder | None], ...] = (
    (frozenset({"str"}), pa.string(), clean),
    (frozenset({"bool"}), pa.bool_(), None),
    (frozenset({"int", "long"}), pa.int64(), None),
    (frozenset({"int", "float"}), pa.float64(), float),
)


def _kind(value: Any) -> str:
    """The JSON type of a value; whole numbers by whether float64 and int64 hold them exactly."""
    if value is None:
        return "null"
    if not isinstance(value, int) or isinstance(value, bool):
        return type(value).__name__
    if abs(value) <= 2**53:
        return "int"
    return "long" if -(2**63) <= value < 2**63 else "huge"


def _has_extension(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return True
    return any(_has_extension(kind.field(i).type) for i in range(kind.num_fields))


def _decoder(kind: pa.DataType) -> Decoder | None:
    """What turns a JSON form back into a value of type `kind`; None where they are the same."""
    types = pa.types
    if types.is_map(kind):
        return _pairs(_decoder(kind.key_type), _decoder(kind.item_type))
    if types.is_struct(kind):
        return _members({field.name: _decoder(field.type) for field in kind})
    if types.is_nested(kind):
        return _items(_decoder(kind.field(0).type))
    return next((decode for is_kind, decode in _SCALARS if is_kind(kind)), None)


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Decoder], ...] = (
    (pa.types.is_binary, base64.b64decode),
    (pa.types.is_large_binary, base64.b64decode),
    (pa.types.is_binary_view, base64.b64decode),
    (pa.types.is_fixed_size_binary, base64.b64decode),
    (pa.types.is_timestamp, datetime.fromisoformat),
    (pa.types.is_date, date.fromisoformat),
    (pa.types.is_time, time.fromisoformat),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_duration, lambda seconds: timedelta(seconds=seconds)),
)


def _optional(decode: Decoder | None, value: Any) -> Any:
    return value if value is None or decode is None else decode(value)


def _items(decode: Decoder | None) -> Decoder | None:
    if decode is None:
        return None
    return lambda values: [_optional(decode, value) for value in values]


def _members(decoders: dict[str, Decoder | None]) -> Decoder:
    return lambda value: {
        name: _optional(decode, value[name]) for name, decode in decoders.items() if name in value
    }


def _pairs(key: Decoder | None, item: Decoder | None) -> Decoder:
    return lambda pairs: [(_optional(key, k), _optional(item, v)) for k, v in pairs]
