"""Which files the input names, of what kind they are, and how to open them.

Knows nothing of what a row means.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from glob import glob
from mimetypes import guess_type
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from batchrun import remote
from batchrun.errors import RowError, RunError, UsageError

Kind = Literal["jsonl", "parquet", "csv", "tsv"]
Codec = Literal["gzip", "zstd"]
ByteStream = io.BufferedReader | gzip.GzipFile

STDIN = "-"
KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
}
_CODECS: dict[str, Codec] = {".gz": "gzip", ".zst": "zstd"}
_MAGIC: dict[bytes, Codec] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_PARQUET_MAGIC = b"PAR1"
_END_BYTES = 64  # read to see what kind of file it is


class RawRow(NamedTuple):
    """A row as its file has it: 1-based `line`, and its columns or why they cannot be read."""

    line: int
    columns: dict[str, Any] | RowError


def resolve_inputs(inputs: tuple[str, ...]) -> list[str]:
    """The files that `inputs` name, in order, those of a glob or folder sorted; "-" is kept.

    Looks at names and first bytes only. Raises UsageError for a file that is missing, or that
    is not of a kind that can be read.
    """
    paths = [path for pattern in inputs for path in _expand(remote.given(pattern))]
    if not paths:
        raise UsageError("no input: name a file, a quoted glob, or - for standard input")
    if paths.count(STDIN) > 1:
        raise UsageError("standard input (-) can be read only once")
    for path in paths:
        _check(path)
    return paths


def kind_of(path: str) -> Kind:
    """The kind of file by its name's extension, a compression suffix aside; streams are JSONL."""
    kind = KINDS.get(_suffix(path), "jsonl" if is_stream(path) else None)
    if kind is None:
        kinds = ", ".join(KINDS)
        hint = _media_hint(path)
        raise UsageError(
            f"{path}: unknown kind of file; use one of {kinds} (.gz and .zst too){hint}"
        )
    return kind


def is_stream(path: str) -> bool:
    """Whether the input can be read only once, as stdin and pipes."""
    return path == STDIN or (os.path.exists(path) and not os.path.isfile(path))


def is_compressed(path: str) -> bool:
    """Whether the file's name or its first bytes say so."""
    return _codec_by_name(path) is not None or _codec_by_content(_head(path)) is not None


@contextmanager
def open_bytes(path: str) -> Iterator[ByteStream]:
    """The file's bytes, decompressed.

    Raises RunError naming the file where it cannot be read, or where compressed data are cut off:
    also while the stream is being read inside the `with`.
    """
    try:
        with ExitStack() as stack:
            yield _decompressed(_open(path, stack), _codec_by_name(path))
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path}: cannot be read to its end: {error}") from error


def _expand(pattern: str) -> list[str]:
    if remote.is_url(pattern):
        return _expand_url(pattern)
    if os.path.isdir(pattern):
        return _files_in(pattern)
    if pattern == STDIN or os.path.exists(pattern):
        return [pattern]
    found = [path for path in sorted(glob(pattern, recursive=True)) if not os.path.isdir(path)]
    if not found:
        raise UsageError(f"{pattern}: no such file")
    return found


def _expand_url(pattern: str) -> list[str]:
    try:
        kind = remote.kind(pattern)
        if kind == "folder":
            return _readable(pattern, remote.files_in(pattern))
        found = [pattern] if kind == "file" else remote.matching(pattern)
    except remote.StoreError as error:
        raise UsageError(f"{pattern}: {error}") from error
    if not found:
        raise UsageError(f"{pattern}: no such file")
    return found


def _files_in(folder: str) -> list[str]:
    """The files in a folder that can be read, in sorted order."""
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return _readable(folder, [path for path in paths if os.path.isfile(path)])


def _readable(folder: str, files: list[str]) -> list[str]:
    """Those of a folder's files that can be read; hidden ones are not looked at, nor what begins
    with an underscore, as other programs name what is not data."""
    visible = [path for path in files if not _file_name(path).startswith((".", "_"))]
    found = [path for path in visible if _suffix(path) in KINDS]
    if not found:
        kinds, hint = ", ".join(KINDS), _media_hint(*visible)
        raise UsageError(f"{folder}: is a folder without any file of {kinds}{hint}")
    return found


def _file_name(path: str) -> str:
    return os.path.basename(remote.name_of(path))


def _media_hint(*names: str) -> str:
    """What to do instead with pictures and videos, where any of the files is one."""
    types = [guess_type(_file_name(name))[0] or "" for name in names]
    if not any(found.startswith(("image/", "video/")) for found in types):
        return ""
    return "; list images and videos in a column of such a file, which --image or --video names"


def _check(path: str) -> None:
    kind = kind_of(path)
    if path == STDIN and sys.stdin is None:
        raise UsageError("standard input (-) is closed")
    if not is_stream(path):
        try:
            _check_content(path, kind)
        except remote.StoreError as error:
            raise UsageError(f"{path}: {error}") from error


def _check_content(path: str, kind: Kind) -> None:
    codec = _codec_by_name(path)
    if codec is not None and _codec_by_content(_head(path)) != codec:
        raise UsageError(f"{path}: is not {codec} data; rename it if it is not compressed")
    if kind == "parquet":
        _check_parquet(path, codec)
    elif _suffix(path) == ".json":
        _refuse_array(path)


def _check_parquet(path: str, codec: Codec | None) -> None:
    if codec is not None:
        raise UsageError(f"{path}: Parquet is compressed inside; decompress the file first")
    if not _head(path).startswith(_PARQUET_MAGIC):
        raise UsageError(f"{path}: is not a Parquet file")
    with remote.open_binary(path, _END_BYTES) as file:
        file.seek(-len(_PARQUET_MAGIC), io.SEEK_END)
        if file.read() != _PARQUET_MAGIC:
            raise UsageError(f"{path}: is a Parquet file without its end; was it fully written?")


def _refuse_array(path: str) -> None:
    with open_bytes(path) as stream:
        if stream.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            raise UsageError(
                f"{path}: holds one JSON array, not one object per line; "
                "convert it with: jq -c '.[]'"
            )


def _head(path: str) -> bytes:
    try:
        with remote.open_binary(path, _END_BYTES) as file:
            return file.read(4)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _suffix(path: str) -> str:
    """The extension that says the kind: the one before .gz or .zst."""
    name = Path(remote.name_of(path).lower())
    return (name.with_suffix("") if name.suffix in _CODECS else name).suffix


def _codec_by_name(path: str) -> Codec | None:
    return _CODECS.get(Path(remote.name_of(path)).suffix.lower())


def _codec_by_content(head: bytes) -> Codec | None:
    return next((codec for magic, codec in _MAGIC.items() if head.startswith(magic)), None)


def _open(path: str, stack: ExitStack) -> io.BufferedReader:
    if path != STDIN:
        return stack.enter_context(remote.open_binary(path))
    # Not sys.stdin itself: it waits until its buffer is full, however slow a pipe is, and a process
    # that ends while a thread waits in it is aborted.
    return stack.enter_context(open(sys.stdin.fileno(), "rb", closefd=False))


def _decompressed(stream: io.BufferedReader, codec: Codec | None) -> ByteStream:
    codec = codec or _codec_by_content(stream.peek(4))
    if codec == "gzip":
        return gzip.GzipFile(fileobj=stream)
    if codec == "zstd":
        import pyarrow as pa

        raw = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")
        return io.BufferedReader(cast(io.RawIOBase, raw))
    return stream
