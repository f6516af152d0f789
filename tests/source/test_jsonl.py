from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.errors import RowError, RunError
from batchrun.source import jsonl
from batchrun.source.files import RawRow

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # U+2028 and U+0085 end a line for str.splitlines, and are data here.
    | st.text(st.characters(codec="utf-8") | st.sampled_from("\u2028\u0085\r")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), JSON, max_size=4)


@contextmanager
def file_of(data: bytes) -> Iterator[str]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(data)
        yield str(path)


def rows_of(data: bytes) -> list[RawRow]:
    with file_of(data) as path:
        rows = list(jsonl.read(path))
        assert jsonl.count(path) == len(rows)
        return rows


def columns_of(data: bytes) -> list[dict[str, Any]]:
    return [row.columns for row in rows_of(data)]


def fault_of(line: bytes) -> RowError:
    """The error of a line between two good ones, which must not be touched by it."""
    first, fault, last = rows_of(b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    assert (first.columns, last.columns) == ({"a": 1}, {"a": 2})
    assert fault.line == 2
    assert isinstance(fault.columns, RowError)
    return fault.columns


def test_a_control_character_in_a_string_is_named_with_its_place() -> None:
    message = fault_of(b'{"a": "b\x0bc"}').message
    assert message.endswith("Invalid control character at character 9")


@given(
    objects=st.lists(OBJECTS, max_size=5),
    ends=st.lists(st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n", " \r\n"]), min_size=5),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    ascii_only=st.booleans(),
    is_closed=st.booleans(),
)
def test_objects_come_back_whatever_ends_their_lines(
    objects: list[dict[str, Any]],
    ends: list[str],
    encoding: str,
    ascii_only: bool,
    is_closed: bool,
) -> None:
    lines = [json.dumps(item, ensure_ascii=ascii_only) for item in objects]
    text = "".join(line + end for line, end in zip(lines, ends, strict=False))
    data = (text if is_closed else text.rstrip()).encode(encoding)
    assert columns_of(data) == objects


@given(
    st.binary(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                b"{",
                b"}",
                b'"a"',
                b":",
                b"1",
                b"\n",
                b"\r",
                b"\xff",
                b"\xfe",
                b"\xef\xbb\xbf",
                b"\\ud800",
                b"[",
                b"]",
                b"null",
                b"NaN",
                b" ",
                b"\x00",
                b"{}",
            ]
        ),
        max_size=30,
    ).map(b"".join)
)
def test_any_bytes_make_one_record_per_line_that_is_not_blank(data: bytes) -> None:
    if data.startswith(
        (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    ):
        data = b" " + data
    lines = [line.removeprefix(codecs.BOM_UTF8) for line in data.split(b"\n")]
    expected = [number for number, line in enumerate(lines, 1) if line.strip()]
    rows = rows_of(data)
    assert [row.line for row in rows] == expected
    assert all(isinstance(row.columns, dict | RowError) for row in rows)


@given(st.binary(max_size=60))
def test_any_utf16_bytes_make_records(data: bytes) -> None:
    for row in rows_of(codecs.BOM_UTF16_LE + data):
        assert isinstance(row.columns, dict | RowError)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"null", "null"),
        (b"[1]", "an array"),
        (b'"x"', "a string"),
        (b"1", "a number"),
        (b"1.5", "a number"),
        (b"true", "true or false"),
        (b"{", "not valid JSON"),
        (b'{"a": 1} {"a": 2}', "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": "\x01"}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not valid UTF-8"),
        (b'{"a": "\\ud83d"}', "surrogate"),
        (b'{"a": "\\uDE00"}', "surrogate"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "nested"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested"),
    ],
)
def test_malformed_line_fails_alone_naming_its_place(line: bytes, reason: str) -> None:
    error = fault_of(line)
    assert error.code == "invalid_json_line"
    assert "a.jsonl:2" in error.message
    assert reason in error.message


def test_many_shallow_objects_in_a_line_are_not_nested_too_deep() -> None:
    row = {"a": [{"b": [i]} for i in range(500)]}
    assert columns_of(json.dumps(row).encode()) == [row]


def test_escaped_surrogate_pair_is_one_character() -> None:
    assert columns_of(b'{"a": "\\ud83d\\ude00"}') == [{"a": "\U0001f600"}]


def test_doubled_key_takes_the_last_value() -> None:
    assert columns_of(b'{"a": 1, "a": 2}') == [{"a": 2}]


def test_blank_lines_count_for_lines_and_not_for_rows() -> None:
    rows = rows_of(b'\n  \n{"a": 1}\n\t\r\n\n{"a": 2}')
    assert [row.line for row in rows] == [3, 6]


def test_byte_order_marks_of_joined_files_are_skipped() -> None:
    assert columns_of(codecs.BOM_UTF8 + b'{"a": 1}\n' + codecs.BOM_UTF8 + b'{"a": 2}\n') == [
        {"a": 1},
        {"a": 2},
    ]


@pytest.mark.parametrize("data", [b"", b"\n", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, b" \r\n\n"])
def test_empty_file_has_no_rows(data: bytes) -> None:
    assert rows_of(data) == []


def test_line_separators_inside_strings_are_data() -> None:
    assert columns_of('{"a": "x\u2028y\u2029z\u0085\x7f"}\n'.encode()) == [
        {"a": "x\u2028y\u2029z\u0085\x7f"}
    ]


@pytest.mark.parametrize("bom", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_utf16_file_is_decoded(bom: bytes) -> None:
    encoding = "utf-16-le" if bom == codecs.BOM_UTF16_LE else "utf-16-be"
    # U+0A0A has the bytes of two line feeds.
    text = '{"a": "né\u0a0a\u2028\U0001f600"}\r\n{"a": 2}\n'
    assert columns_of(bom + text.encode(encoding)) == [
        {"a": "né\u0a0a\u2028\U0001f600"},
        {"a": 2},
    ]


def test_utf16_file_with_half_a_character_fails_that_line_alone() -> None:
    lone = '{"a": "'.encode("utf-16-le") + b"\x00\xd8" + '"}\n{"a": 2}\n{"a'.encode("utf-16-le")
    rows = rows_of(codecs.BOM_UTF16_LE + lone + b"\x20")
    assert [type(row.columns) for row in rows] == [RowError, dict, RowError]


def test_very_long_line_is_read() -> None:
    text = "x" * 5_000_000
    assert columns_of(json.dumps({"a": text}).encode() + b"\n{}") == [{"a": text}, {}]


def test_rows_before_the_cut_in_compressed_data_are_read(tmp_path: Path) -> None:
    lines = b"".join(b'{"a": "%d"}\n' % (i * 7919 % 10007) for i in range(20_000))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines)[:-1000])
    rows: list[RawRow] = []
    with pytest.raises(RunError, match=r"a\.jsonl\.gz"):
        rows.extend(jsonl.read(str(path)))
    assert len(rows) > 10_000
    assert all(isinstance(row.columns, dict) for row in rows)
