from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from batchrun.errors import RunError
from batchrun.sink.encode import dumps_kept
from batchrun.sink.kept import plan_columns


def carried(
    rows: list[dict[str, Any]], schema: pa.Schema | None = None, taken: tuple[str, ...] = ()
) -> pa.Table:
    """`rows` through the journal's form and back to a table."""
    forms = [json.loads(dumps_kept(row)) for row in rows]
    columns = plan_columns(forms, schema, taken)
    return pa.table({column.field.name: column.array(forms) for column in columns})


def column_of(values: list[Any]) -> tuple[pa.DataType, list[Any]]:
    column = carried([{"c": value} for value in values])["c"]
    return column.type, column.to_pylist()


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([None, "text", ""], pa.string(), [None, "text", ""]),
        ([None] * 5 + ["text"], pa.string(), [None] * 5 + ["text"]),
        ([True, None, False], pa.bool_(), [True, None, False]),
        ([1, -(2**63), 2**63 - 1], pa.int64(), [1, -(2**63), 2**63 - 1]),
        ([1, 2.5, None], pa.float64(), [1.0, 2.5, None]),
        ([None, None], pa.string(), [None, None]),
        ([1, True], pa.string(), ["1", "true"]),
        ([1, "1"], pa.string(), ["1", '"1"']),
        ([2**63], pa.string(), [str(2**63)]),
        ([2**53 + 1, 0.5], pa.string(), [str(2**53 + 1), "0.5"]),
        ([{"a": [1]}, None], pa.string(), ['{"a":[1]}', None]),
        (["\ud800"], pa.string(), ["\ufffd"]),
        ([["\ud800"]], pa.string(), ['["\\ud800"]']),
    ],
)
def test_a_type_follows_from_all_values_of_a_column(
    values: list[Any], kind: pa.DataType, expected: list[Any]
) -> None:
    assert column_of(values) == (kind, expected)


def test_columns_that_only_some_rows_have_are_null_elsewhere() -> None:
    table = carried([{"a": 1}, {"b": "x"}, {}])
    assert table.to_pydict() == {"a": [1, None, None], "b": [None, "x", None]}


def test_names_of_our_own_columns_get_a_prefix_and_never_collide() -> None:
    table = carried([{"row": 1, "input_row": 2, "text": "t"}], taken=("row", "text"))
    assert table.to_pylist() == [{"input_input_row": 1, "input_row": 2, "input_text": "t"}]


def test_names_that_differ_only_in_lone_surrogates_stay_two_columns() -> None:
    table = carried([{"a\ud800": 3}, {"a\udfff": 4}])
    assert table.to_pydict() == {"a\ufffd": [3, None], "input_a\ufffd": [None, 4]}


BERLIN = ZoneInfo("Europe/Berlin")
TYPED: list[tuple[pa.DataType, Any]] = [
    (pa.int8(), -3),
    (pa.uint64(), 2**64 - 1),
    (pa.float16(), 0.5),
    (pa.float64(), float("inf")),
    (pa.bool_(), True),
    (pa.large_string(), "long"),
    (pa.binary(), b"\x00\xff"),
    (pa.large_binary(), b""),
    (pa.binary(3), b"abc"),
    (pa.date32(), date(1969, 12, 31)),
    (pa.date64(), date(2024, 2, 29)),
    (pa.time32("s"), time(23, 59, 59)),
    (pa.time64("us"), time(1, 2, 3, 4)),
    (pa.timestamp("us"), datetime(2024, 2, 29, 1, 2, 3, 4)),
    (pa.timestamp("s"), datetime(1901, 1, 1)),
    (pa.timestamp("us", tz="UTC"), datetime(2024, 2, 29, tzinfo=UTC)),
    (pa.timestamp("ms", tz="Europe/Berlin"), datetime(2024, 7, 1, 12, tzinfo=BERLIN)),
    (pa.timestamp("us", tz="Europe/Berlin"), datetime(1890, 1, 1, tzinfo=BERLIN)),
    (pa.duration("us"), timedelta(days=3, microseconds=1)),
    (pa.decimal128(20, 3), Decimal("-12345678901234567.890")),
    (pa.null(), None),
    (pa.list_(pa.date32()), [date(2024, 1, 1), None]),
    (pa.list_(pa.int64(), 2), [1, 2]),
    (pa.list_(pa.list_(pa.binary())), [[b"a"], None, []]),
    (pa.struct({"b": pa.binary(), "n": pa.int64()}), {"b": b"a", "n": None}),
    (pa.map_(pa.string(), pa.binary()), [("k", b"v")]),
    (pa.map_(pa.string(), pa.int64()), [("k", 1), ("l", None)]),
]


@pytest.mark.parametrize(("kind", "value"), TYPED, ids=[str(kind) for kind, _ in TYPED])
def test_a_table_column_comes_back_as_it_was(kind: pa.DataType, value: Any) -> None:
    source = pa.table({"c": pa.array([None, value], kind)})
    assert carried(source.to_pylist(), source.schema).equals(source)


def test_a_column_whose_first_rows_are_null_has_its_type() -> None:
    schema = pa.schema([("c", pa.string()), ("d", pa.timestamp("us"))])
    rows: list[dict[str, Any]] = [{"c": None, "d": None}] * 3 + [{"c": "text", "d": None}]
    table = carried(rows, schema)
    assert table.schema == schema
    assert table["c"].to_pylist() == [None, None, None, "text"]


def test_failed_rows_may_lack_a_column_that_must_not_be_null() -> None:
    schema = pa.schema([pa.field("c", pa.int64(), nullable=False)])
    assert carried([{"c": 1}, {}], schema).to_pydict() == {"c": [1, None]}


def test_a_type_that_has_no_way_back_is_inferred() -> None:
    schema = pa.schema([("u", pa.list_(pa.uuid())), ("n", pa.int32())])
    table = carried([{"u": ["x"], "n": 1}], schema)
    assert table.schema.field("u").type == pa.string()
    assert table.to_pydict() == {"n": [1], "u": ['["x"]']}


def test_a_column_outside_the_schema_is_inferred() -> None:
    table = carried([{"a": 1, "b": 2}], pa.schema([("a", pa.int8())]))
    assert table.schema.types == [pa.int8(), pa.int64()]


@pytest.mark.parametrize("kind", [pa.binary(), pa.date32(), pa.decimal128(3, 1), pa.int8()])
def test_a_value_that_does_not_fit_its_type_names_the_column(kind: pa.DataType) -> None:
    with pytest.raises(RunError, match=r"'c'.*--keep"):
        carried([{"c": "1?"}], pa.schema([("c", kind)]))
