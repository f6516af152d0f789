"""Text as files have it: byte order marks, encodings, and strict JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from batchrun.source.files import ByteStream, open_bytes

_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_MAX_DEPTH = 100
_TOO_DEEP = f"nested more than {_MAX_DEPTH} levels deep"


@contextmanager
def open_lines(path: str) -> Iterator[Iterator[bytes]]:
    """The file's lines in UTF-8, split only at "\n", without byte order marks.

    A UTF-16 file is recoded; what cannot be decoded comes out as bytes that are not UTF-8, so
    that only its own line is at fault. Raises as `open_bytes` does.
    """
    with open_bytes(path) as stream:
        if not _is_utf16(stream):
            # Joined files have marks in the middle too; none is ever part of the JSON.
            yield (line.removeprefix(_UTF8_BOM) for line in stream)
            return
        with _wrapped(stream, "utf-16", "surrogatepass", newline="\n") as text:
            yield _recoded(text)


@contextmanager
def open_text(path: str) -> Iterator[io.TextIOWrapper]:
    """The file as text, in UTF-16 if it says so, else in UTF-8; line ends as they are.

    Bytes that are not text come out as lone surrogates. Raises as `open_bytes` does.
    """
    with open_bytes(path) as stream:
        encoding, errors = ("utf-8-sig", "surrogateescape")
        if _is_utf16(stream):
            encoding, errors = ("utf-16", "surrogatepass")
        with _wrapped(stream, encoding, errors, newline="") as text:
            yield text


@contextmanager
def _wrapped(
    stream: ByteStream, encoding: str, errors: str, *, newline: str
) -> Iterator[io.TextIOWrapper]:
    text = io.TextIOWrapper(stream, encoding, errors, newline)
    try:
        yield text
    finally:
        # The stream belongs to who opened it.
        text.detach()


def _is_utf16(stream: ByteStream) -> bool:
    return stream.peek(2)[:2] in _UTF16_BOMS


def _recoded(text: io.TextIOWrapper) -> Iterator[bytes]:
    try:
        for line in text:
            yield line.encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        # The file ends in the middle of a character.
        yield b"\xff"


def parse_json(text: str | bytes) -> Any:
    """The value of one JSON text.

    Raises ValueError, with the reason, for anything that standard JSON does not allow, NaN and
    Infinity included, and for text that could not be written as UTF-8 again.
    """
    if isinstance(text, bytes):
        text = _decode(text)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")  # some of json's reasons end so
        raise ValueError(f"{reason} at character {error.pos + 1}") from error
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("{") + text.count("[") > _MAX_DEPTH:
        _check_depth(value)
    if "\\ud" in text or "\\uD" in text:
        _refuse_lone_surrogates(value)
    return value


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 at byte {error.start + 1}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed in JSON; use null")


def _check_depth(value: Any) -> None:
    """Raises ValueError for what later steps, which recurse, could not take."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in _items(outer)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair (\\ud800 to \\udfff) in a string") from None


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
