"""CSV and TSV, with a header line; every cell is text.

A record that is not well formed, or has more or fewer cells than the header, fails alone.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, TextIO

from batchrun.errors import RowError, UsageError
from batchrun.source.files import RawRow
from batchrun.source.text import open_text

# The largest cell, in characters: what an unclosed quote may swallow. The module's own limit of
# 128 KiB is less than a document may have.
_MAX_CELL = 2**26
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_CODE = "invalid_csv_row"


def read(path: str, kind: Literal["csv", "tsv"]) -> Iterator[RawRow]:
    """One record per row below the header; blank lines are skipped, and do not count as rows.

    A row's line is the one it starts on. Raises RunError where the file cannot be read, and
    UsageError for a header that cannot be used.
    """
    with open_text(path) as text:
        records = _records(text, kind)
        header = _header(records, path)
        for line, cells in records:
            yield RawRow(line, _columns(header, cells, f"{path}:{line}"))


def read_header(path: str, kind: Literal["csv", "tsv"]) -> list[str]:
    """The names of the columns. Raises as `read` does."""
    with open_text(path) as text:
        return _header(_records(text, kind), path)


def _records(text: TextIO, kind: str) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """Each record that is not blank, or what is wrong with it, and its first line."""
    csv.field_size_limit(_MAX_CELL)
    reader = csv.reader(text, delimiter=_DELIMITERS[kind], strict=True)
    try:
        while True:
            line = reader.line_num + 1
            record = _next(reader)
            if record is None:
                return
            if record:
                yield line, record
    except UnicodeDecodeError:
        # Only the end of UTF-16 can raise it: nothing comes after.
        yield line, csv.Error("the file ends in the middle of a character")


def _next(reader: Any) -> list[str] | csv.Error | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        return error


def _header(records: Iterator[tuple[int, list[str] | csv.Error]], path: str) -> list[str]:
    _, header = next(records, (1, []))
    if isinstance(header, csv.Error):
        raise UsageError(f"{path}: the header cannot be read: {header}")
    doubled = [name for name, times in Counter(header).items() if times > 1]
    if doubled:
        raise UsageError(f"{path}: the header names {doubled[0]!r} more than once; rename one")
    if not _is_text(header):
        raise UsageError(f"{path}: the header is not UTF-8; save the file as UTF-8")
    return header


def _columns(
    header: list[str], cells: list[str] | csv.Error, place: str
) -> dict[str, Any] | RowError:
    if isinstance(cells, csv.Error):
        return RowError(_CODE, f"{place} cannot be read: {cells}")
    if len(cells) != len(header):
        return RowError(
            _CODE,
            f"{place} has {len(cells)} where the header has {len(header)} cells; "
            "quote cells that hold the delimiter",
        )
    if not _is_text(cells):
        return RowError(_CODE, f"{place} is not UTF-8; save the file as UTF-8")
    return dict(zip(header, cells, strict=True))


def _is_text(cells: list[str]) -> bool:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True
