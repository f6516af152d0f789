from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.errors import RowError, UsageError
from batchrun.source import delimited
from batchrun.source.files import RawRow

CELLS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\n\r,;\t \u2028\u0085'))


def rows_of(tmp_path: Path, data: bytes, kind: Any = "csv") -> list[RawRow]:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(data)
    return list(delimited.read(str(path), kind))


def columns_of(tmp_path: Path, data: bytes, kind: str = "csv") -> list[dict[str, Any]]:
    return [row.columns for row in rows_of(tmp_path, data, kind)]


@given(
    records=st.lists(st.tuples(CELLS, CELLS), max_size=5),
    kind=st.sampled_from(["csv", "tsv"]),
    end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cells_come_back_whatever_is_in_them(
    tmp_path: Path, records: list[tuple[str, str]], kind: str, end: str, encoding: str
) -> None:
    text = io.StringIO(newline="")
    delimiter = {"csv": ",", "tsv": "\t"}[kind]
    csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(
        [("a", "b"), *records]
    )
    data = text.getvalue().encode(encoding)
    assert columns_of(tmp_path, data, kind) == [{"a": a, "b": b} for a, b in records]


@given(st.binary(max_size=100))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_below_a_header_make_records(tmp_path: Path, data: bytes) -> None:
    for row in rows_of(tmp_path, b"a,b\n" + data):
        assert isinstance(row.columns, dict | RowError)


def test_line_is_where_the_row_starts(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'a,b\r\n1,"x\r\ny"\r\n\r\n2,z\r\n')
    assert rows == [(2, {"a": "1", "b": "x\r\ny"}), (5, {"a": "2", "b": "z"})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1", "1 where the header has 2 cells"),
        (b"1,2,3", "3 where the header has 2 cells"),
        (b'"1"x,2', "expected after"),
        (b"\xff,2", "UTF-8"),
    ],
)
def test_bad_record_fails_alone_naming_its_place(tmp_path: Path, line: bytes, reason: str) -> None:
    first, fault, last = rows_of(tmp_path, b"a,b\n1,2\n" + line + b"\n3,4\n")
    assert (first.columns, last.columns) == ({"a": "1", "b": "2"}, {"a": "3", "b": "4"})
    assert isinstance(fault.columns, RowError)
    assert fault.columns.code == "invalid_csv_row"
    assert "a.csv:3" in fault.columns.message
    assert reason in fault.columns.message


def test_quote_left_open_is_one_fault(tmp_path: Path) -> None:
    first, fault = rows_of(tmp_path, b'a,b\n1,2\n"3,4\n5,6\n')
    assert first.columns == {"a": "1", "b": "2"}
    assert isinstance(fault.columns, RowError)


def test_utf16_file_cut_in_a_character_fails_its_last_row_alone(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "a,b\n1,2\n3,4".encode("utf-16") + b"\x20")
    assert [type(row.columns) for row in rows] == [dict, RowError]


def test_cell_larger_than_the_csv_module_allows_by_default_is_read(tmp_path: Path) -> None:
    text = "x" * 300_000
    assert columns_of(tmp_path, b"a\n" + text.encode()) == [{"a": text}]


def test_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a\n1\n"))
    assert [row.columns for row in delimited.read(str(path), "csv")] == [{"a": "1"}]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"a,b\n", b"a,b"])
def test_file_without_rows_is_empty(tmp_path: Path, data: bytes) -> None:
    assert rows_of(tmp_path, data) == []


@pytest.mark.parametrize(
    ("header", "reason"),
    [(b"a,b,a", "'a' more than once"), (b"\xe9", "UTF-8"), (b'"a"b', "cannot be read")],
)
def test_header_that_cannot_be_used_is_a_usage_error(
    tmp_path: Path, header: bytes, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        rows_of(tmp_path, header + b"\n1,2,3\n")


def test_header_is_read_without_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfid,text\n1,x\n")
    assert delimited.read_header(str(path), "csv") == ["id", "text"]
