"""A file elsewhere as a stream of bytes: no more of it in memory than what is read at once."""

from __future__ import annotations

import io
import tempfile
from typing import TYPE_CHECKING, Any

from batchrun.remote.store import at, explained
from batchrun.remote.urls import is_url, is_web

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_BUFFER_BYTES = 2**22


def open_binary(path: str, buffer_bytes: int = _BUFFER_BYTES) -> io.BufferedReader:
    """The bytes of a file here or elsewhere; of the latter about `buffer_bytes` are read at once.

    Raises OSError, of which StoreError, also while it is read.
    """
    if not is_url(path):
        return open(path, "rb")
    return io.BufferedReader(_Stream(path), buffer_bytes)


class _Stream(io.RawIOBase):
    """A file elsewhere, with its errors explained. What is read at once is who reads it's to say:
    nothing is read ahead, which for tables read column by column would be read for nothing."""

    def __init__(self, url: str):
        super().__init__()
        self._url = url
        with at(url) as (store, path):
            open_file = _open_web if is_web(url) else _open
            self._file = open_file(store, path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        with explained(self._url):
            return int(self._file.readinto(buffer) or 0)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with explained(self._url):
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _open(store: AbstractFileSystem, path: str) -> Any:
    return store.open(path, "rb", cache_type="none")


def _open_web(store: AbstractFileSystem, path: str) -> Any:
    """Not every web server can begin in the middle, and one answer cannot be left open for the
    hours that a run may take: what such a server has is fetched whole, onto the disk."""
    file = _open(store, path)
    try:
        file.seek(1)
        file.read(1)
        file.seek(0)
    except ValueError:
        file.close()
        file = tempfile.TemporaryFile()  # noqa: SIM115
        store.get_file(path, file)
        file.seek(0)
    return file
