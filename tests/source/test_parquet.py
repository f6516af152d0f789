from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchrun.errors import RowError, RunError
from batchrun.source import parquet
from batchrun.source.files import RawRow


def write(tmp_path: Path, columns: dict[str, Any], **options: Any) -> str:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def columns_of(path: str, columns: list[str] | None = None) -> list[dict[str, Any] | RowError]:
    return [row.columns for row in parquet.read(path, columns)]


def value_of(tmp_path: Path, array: pa.Array) -> Any:
    [row] = columns_of(write(tmp_path, {"a": array}))
    assert isinstance(row, dict)
    return row["a"]


def test_rows_are_numbered_from_one_over_all_row_groups(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": [10, 11, 12]}, row_group_size=2)
    assert list(parquet.read(path)) == [
        RawRow(1, {"a": 10}),
        RawRow(2, {"a": 11}),
        RawRow(3, {"a": 12}),
    ]
    assert parquet.count(path) == 3


def test_only_the_asked_columns_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": [1], "b": [2], "c": [3]})
    assert columns_of(path, ["c", "a"]) == [{"a": 1, "c": 3}]


def test_column_that_is_null_in_the_first_row_group_has_text_in_the_second(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, {"a": pa.array([None, None, "x"])}, row_group_size=2)
    assert columns_of(path) == [{"a": None}, {"a": None}, {"a": "x"}]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
)
def test_text_of_every_layout_is_text(tmp_path: Path, kind: pa.DataType) -> None:
    assert value_of(tmp_path, pa.array(["é"], pa.string()).cast(kind)) == "é"


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.string()),
        pa.list_(pa.string(), 2),
        pa.list_view(pa.string()),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_list_of_every_layout_is_a_list(tmp_path: Path, kind: pa.DataType) -> None:
    assert value_of(tmp_path, pa.array([["a", "b"]], kind)) == ["a", "b"]


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        (1_001, datetime(1970, 1, 1, 0, 0, 0, 1)),
        (-(10**9), datetime(1969, 12, 31, 23, 59, 59)),
        (-9_000_000_000_000_000_001, datetime(1684, 10, 19, 8, 0)),
    ],
)
def test_times_finer_than_microseconds_are_cut(
    tmp_path: Path, nanoseconds: int, expected: datetime
) -> None:
    value = value_of(tmp_path, pa.array([nanoseconds], pa.timestamp("ns")))
    assert type(value) is datetime
    assert value == expected


def test_fine_times_are_cut_inside_structs_lists_and_maps(tmp_path: Path) -> None:
    stamp = pa.timestamp("ns", "UTC")
    kind = pa.struct(
        [
            ("list", pa.list_(pa.duration("ns"))),
            ("map", pa.map_(pa.string(), stamp)),
            ("time", pa.time64("ns")),
            ("fixed", pa.list_(stamp, 1)),
        ]
    )
    row = {"list": [1500], "map": [("x", 2500)], "time": 3500, "fixed": [1001]}
    value = value_of(tmp_path, pa.array([row], kind))
    assert value == {
        "list": [timedelta(microseconds=1)],
        "map": [("x", datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=UTC))],
        "time": time(0, 0, 0, 3),
        "fixed": [datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    }


def test_value_that_python_cannot_hold_fails_its_row_alone(tmp_path: Path) -> None:
    stamps = pa.array([0, 2**60, 1], pa.timestamp("us"))
    first, fault, last = columns_of(write(tmp_path, {"id": [1, 2, 3], "when": stamps}))
    assert first == {"id": 1, "when": datetime(1970, 1, 1)}
    assert last == {"id": 3, "when": datetime(1970, 1, 1, 0, 0, 0, 1)}
    assert isinstance(fault, RowError)
    assert (fault.code, fault.param) == ("invalid_request", "when")


def test_text_that_is_not_utf8_fails_its_row_alone(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    first, fault = columns_of(write(tmp_path, {"a": broken}))
    assert first == {"a": "a"}
    assert isinstance(fault, RowError)


def test_schema_has_the_types_of_the_values_read(tmp_path: Path) -> None:
    columns = {
        "when": pa.array([0], pa.timestamp("ns", "UTC")),
        "label": pa.array(["a"]).dictionary_encode(),
        "points": pa.array([[0]], pa.large_list(pa.duration("ns"))),
        "number": pa.array([1], pa.int16()),
    }
    schema = parquet.read_schema(write(tmp_path, columns))
    assert schema.types == [
        pa.timestamp("us", "UTC"),
        pa.string(),
        pa.large_list(pa.duration("us")),
        pa.int16(),
    ]


def test_large_rows_come_in_small_batches(tmp_path: Path) -> None:
    path = write(tmp_path, {"a": [str(i) * 100_000 for i in range(40)]}, use_dictionary=False)
    small = write(tmp_path / "..", {"a": list(range(5000))})
    assert parquet._batch_rows(pq.read_metadata(path)) < 400
    assert parquet._batch_rows(pq.read_metadata(small)) == 1024


def test_file_without_rows_is_empty(tmp_path: Path) -> None:
    assert columns_of(write(tmp_path, {"a": pa.array([], pa.string())})) == []


def test_corrupt_footer_fails_naming_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1" + b"\xff" * 50 + b"PAR1")
    for read in (columns_of, parquet.count, parquet.read_schema):
        with pytest.raises(RunError, match=r"a\.parquet: cannot be read as Parquet"):
            read(str(path))


def test_corrupt_page_fails_naming_the_file_after_the_rows_before_it(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"a": [f"text {i * 7919}" for i in range(4000)]},
        row_group_size=2000,
        use_dictionary=False,
        compression="gzip",
    )
    data = bytearray(Path(path).read_bytes())
    offset = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data[offset + 200 : offset + 400] = b"\xff" * 200
    Path(path).write_bytes(data)
    rows: list[RawRow] = []
    with pytest.raises(RunError, match=r"a\.parquet: cannot be read to its end"):
        rows.extend(parquet.read(path))
    assert len(rows) >= 1024
