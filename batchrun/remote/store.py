"""What is asked of a store: to say what there is, to read, to write and to remove.

Drivers raise whatever their libraries do. Here it all becomes `StoreError`, whose `strerror` says
in one line what is wrong and what to do, to follow the URL.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from batchrun.errors import UsageError
from batchrun.remote.urls import host, is_url, is_web, opened, scheme, without_secrets

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Kind = Literal["file", "folder"]

_BUFFER_BYTES = 2**22
# An object appears there when all of it has arrived; elsewhere a file grows under its name.
_WHOLE_OBJECTS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf", "oci", "oss", "tos")
_PACKAGES = {
    "s3": '"batchrun[s3]"',
    "s3a": '"batchrun[s3]"',
    "gs": '"batchrun[gcs]"',
    "gcs": '"batchrun[gcs]"',
    "http": "aiohttp",
    "https": "aiohttp",
}


class StoreError(OSError):
    """What went wrong at a URL; its text is `strerror`."""

    def __str__(self) -> str:
        return str(self.strerror)

    @property
    def is_missing(self) -> bool:
        return self.errno == errno.ENOENT


def open_binary(path: str, buffer_bytes: int = _BUFFER_BYTES) -> io.BufferedReader:
    """The bytes of a file here or elsewhere; of the latter about `buffer_bytes` are read at once.

    Raises OSError, of which StoreError, also while it is read.
    """
    if not is_url(path):
        return open(path, "rb")
    return io.BufferedReader(_Stream(path), buffer_bytes)


def kind(url: str) -> Kind | None:
    """What is at a URL, None where nothing is. Raises StoreError, UsageError."""
    try:
        with _at(url) as (store, path):
            store.invalidate_cache()
            found = store.info(path)["type"]
    except StoreError as error:
        if error.is_missing:
            return None
        raise
    return "folder" if found == "directory" else "file"


def check_driver(url: str) -> None:
    """Raises UsageError where what reads such URLs is not installed."""
    _driver(url)


def check_reach(url: str) -> None:
    """Raises StoreError where nothing could be written to `url`, as its bucket is not there."""
    with _at(url) as (store, path):
        while (path := store._parent(path)).strip("/"):
            if store.exists(path):
                return
            if not store._parent(path).strip("/"):
                raise StoreError(errno.ENOENT, f"there is no {path.strip('/')}; make it first")


def files_in(folder: str) -> list[str]:
    """The URLs of the files in a folder, sorted; none where it is not there."""
    try:
        with _at(folder) as (store, path):
            store.invalidate_cache()
            found = store.ls(path, detail=True)
            names = [each["name"] for each in found if each["type"] == "file"]
            # Some stores have an empty object for the folder itself.
            return sorted(_url(store, folder, path, n) for n in names if n.rstrip("/") != path)
    except StoreError as error:
        if error.is_missing:
            return []
        raise


def matching(pattern: str) -> list[str]:
    """The URLs of the files that a glob names, sorted; a web URL is none."""
    if is_web(pattern):
        return []
    with _at(pattern) as (store, path):
        store.invalidate_cache()
        found = store.glob(path, detail=True)
        names = [name for name, info in found.items() if info["type"] == "file"]
        return sorted(_url(store, pattern, path, name) for name in names)


def download(url: str, path: Path) -> None:
    with _at(url) as (store, there):
        store.get_file(there, str(path))


def upload(path: Path, url: str) -> None:
    """Puts a file at `url`, whole or not at all."""
    with _at(url) as (store, there):
        if scheme(url) in _WHOLE_OBJECTS:
            store.put_file(str(path), there)
            return
        folder, _, name = there.rpartition("/")
        temporary = f"{folder}/.{name}.tmp-{os.getpid()}"
        store.makedirs(folder, exist_ok=True)
        store.put_file(str(path), temporary)
        store.mv(temporary, there)


def remove(url: str) -> None:
    with _at(url) as (store, path):
        store.rm_file(path)


class _Stream(io.RawIOBase):
    """A file elsewhere, with its errors explained. What is read at once is who reads it's to say:
    nothing is read ahead, which for tables read column by column would be read for nothing."""

    def __init__(self, url: str):
        super().__init__()
        self._url = url
        with _at(url) as (store, path):
            self._file: Any = store.open(path, "rb", cache_type="none")
        self._seekable = bool(self._file.seekable())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def readinto(self, buffer: Any, /) -> int:
        with _explained(self._url):
            return int(self._file.readinto(buffer) or 0)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with _explained(self._url):
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def _at(url: str) -> Iterator[tuple[AbstractFileSystem, str]]:
    """The store that a URL names, and the path in it."""
    whole = opened(url)
    driver = _driver(url)
    with _explained(url):
        # Of what says which store it is alone: rows may have chosen the rest.
        store = driver(**driver._get_kwargs_from_urls(f"{host(whole)}/"))
        yield store, str(driver._strip_protocol(whole))


def _driver(url: str) -> type[AbstractFileSystem]:
    import fsspec

    protocol = scheme(url)
    try:
        found: type[AbstractFileSystem] = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        remedy = f"needs a driver: pip install {package}" if package else str(error)
        raise UsageError(f"{url}: {remedy}") from error
    except ValueError as error:
        raise UsageError(f"{url}: no store is known that {protocol}:// names") from error
    return found


def _url(store: AbstractFileSystem, base: str, base_path: str, path: str) -> str:
    """The URL of `path`, in the form of `base`, whose path is `base_path`."""
    if is_url(path):
        return path
    whole = base.rstrip("/")
    if whole.endswith(base_path):
        return whole.removesuffix(base_path) + path
    return str(store.unstrip_protocol(path))


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except (StoreError, UsageError, MemoryError):
        raise
    except FileNotFoundError as error:
        if is_web(url) and error.__cause__ is not None:  # whatever it is, the driver calls it so
            raise _unreachable(error.__cause__) from error
        raise StoreError(errno.ENOENT, "there is no such file, folder or bucket") from error
    except PermissionError as error:
        raise StoreError(
            errno.EACCES,
            f"access is denied ({_line(error)}); see which credentials the store's driver finds",
        ) from error
    # Drivers have no error in common.
    except Exception as error:
        raise _unreachable(error) from error


def _unreachable(error: BaseException) -> StoreError:
    return StoreError(
        errno.EIO, f"cannot be reached ({_line(error)}); see the network and the credentials"
    )


def _line(error: BaseException) -> str:
    text = " ".join(without_secrets(str(error)).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"
