"""JSON Lines: one object per line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from batchrun.errors import RowError
from batchrun.source.files import RawRow
from batchrun.source.text import open_lines, parse_json


def read(path: str) -> Iterator[RawRow]:
    """One record per line that is not blank. Raises RunError where the file cannot be read."""
    with open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            if _has_row(line):
                yield RawRow(number, _parse(line, f"{path}:{number}"))


def count(path: str, limit: int | None = None) -> int:
    """How many records `read` yields, `limit` at most, without parsing them."""
    with open_lines(path) as lines:
        return sum(map(_has_row, islice(filter(_has_row, lines), limit)))


def _has_row(line: bytes) -> bool:
    return bool(line.strip())


def _parse(line: bytes, place: str) -> dict[str, Any] | RowError:
    try:
        value = parse_json(line)
    except ValueError as error:
        return RowError("invalid_json_line", f"{place} is not valid JSON: {error}")
    if not isinstance(value, dict):
        kind = _JSON_NAMES[type(value)]
        return RowError("invalid_json_line", f"{place} holds {kind}; a line must be an object")
    return value


_JSON_NAMES: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
