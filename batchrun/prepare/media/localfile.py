"""Files that rows name: only regular ones, and only below the media root."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from batchrun.prepare.media.dataurl import too_large
from batchrun.prepare.media.faults import MediaFault


class FileId(NamedTuple):
    """What tells a file by the name given, and this state of it, from all others. Copies keep the
    time of the last write, so that of the last change at all is looked at too."""

    name: str
    device: int
    inode: int
    modified_ns: int
    changed_ns: int
    size: int


def local_path(value: str, root: Path) -> Path:
    """The file that a path or file:// URL names, relative to `root` and below it, with all links
    followed. Raises MediaFault."""
    try:
        real_root = _resolved(root)
        path = (real_root / _path_of(value)).resolve(strict=True)
        inside = path.is_relative_to(real_root)
    except (OSError, ValueError, RuntimeError) as error:
        raise _fault(value, error) from error
    if not inside:
        raise MediaFault(
            "media_path_refused",
            f"names {value[:200]!r}, which is outside of {root}; --media-root names another folder",
            status=403,
        )
    return path


@contextmanager
def opened(path: Path, max_bytes: int) -> Iterator[BinaryIO]:
    """The file at a path that `local_path` gave. Raises MediaFault for what is no regular file,
    is empty or too large."""
    try:
        # Not to wait for the other end of a pipe, nor to follow a link put there by now.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _fault(str(path), error) from error
    # Not at once as a file: of a folder Python makes none.
    try:
        _check(path, os.fstat(handle), max_bytes)
    except MediaFault:
        os.close(handle)
        raise
    with os.fdopen(handle, "rb") as file:
        yield file


def file_id(value: str, root: Path) -> FileId:
    """One look at the disk for each row, where following the links would take a dozen: whether the
    file may be read is for `local_path` to say. Raises MediaFault where there is none."""
    try:
        name = root / _path_of(value)
        found = name.stat()
    except (OSError, ValueError) as error:
        raise _fault(value, error) from error
    return FileId(
        str(name),
        found.st_dev,
        found.st_ino,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_size,
    )


@cache
def _resolved(root: Path) -> Path:
    return root.resolve()


def _path_of(value: str) -> str:
    if value[:5].lower() != "file:":
        return value
    parts = urlsplit(value)
    if parts.netloc not in ("", "localhost"):
        raise MediaFault("invalid_url", f"names a file on another machine, {parts.netloc}")
    return url2pathname(parts.path)


def _check(path: Path, found: os.stat_result, max_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise MediaFault("media_path_refused", f"names {path}, which is no regular file")
    if found.st_size == 0:
        raise MediaFault("invalid_media", f"names {path}, which is empty")
    if found.st_size > max_bytes:
        raise too_large(max_bytes)


def _fault(value: str, error: Exception) -> MediaFault:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        problem = "no such file; paths count from the input's folder, or from --media-root"
        return MediaFault("media_not_found", f"names {value[:200]!r}: {problem}", status=404)
    number = error.errno if isinstance(error, OSError) else None
    reason = _REASONS.get(number) or (os.strerror(number) if number else str(error))
    return MediaFault("media_unreadable", f"names {value[:60]!r}, which cannot be read: {reason}")


_REASONS: dict[int | None, str] = {
    errno.ENXIO: "no regular file",
    errno.ENAMETOOLONG: "too long for a path; base64 needs data:image/png;base64, in front of it",
}
