"""What is asked of a store: to say what there is, to bring, to write and to remove.

Drivers raise whatever their libraries do. Here it all becomes `StoreError`, whose `strerror` says
in one line what is wrong and what to do, to follow the URL.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from batchrun.errors import UsageError
from batchrun.remote.urls import host, is_url, is_web, opened, scheme, without_secrets

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Kind = Literal["file", "folder"]

# An object appears there when all of it has arrived; elsewhere a file grows under its name.
_WHOLE_OBJECTS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf", "oci", "oss", "tos")
_FULL = (errno.ENOSPC, errno.EDQUOT)
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


def kind(url: str) -> Kind | None:
    """What is at a URL, None where nothing is. Raises StoreError, UsageError."""
    try:
        with at(url) as (store, path):
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
    """Raises StoreError where nothing could be written to `url`, as its bucket is not there; in
    other stores folders are made."""
    if scheme(url) not in _WHOLE_OBJECTS:
        return
    with at(url) as (store, path):
        while (path := store._parent(path)).strip("/"):
            if store.exists(path):
                return
            if not store._parent(path).strip("/"):
                raise StoreError(errno.ENOENT, f"there is no {path.strip('/')}; make it first")


def files_in(folder: str) -> list[str]:
    """The URLs of the files in a folder, sorted; none where it is not there."""
    try:
        with at(folder) as (store, path):
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
    with at(pattern) as (store, path):
        store.invalidate_cache()
        found = store.glob(path, detail=True)
        names = [name for name, info in found.items() if info["type"] == "file"]
        return sorted(_url(store, pattern, path, name) for name in names)


def download(url: str, path: Path) -> None:
    with at(url) as (store, there):
        store.get_file(there, str(path))


def upload(path: Path, url: str) -> None:
    """Puts a file at `url`, whole or not at all."""
    with at(url) as (store, there):
        if scheme(url) in _WHOLE_OBJECTS:
            store.put_file(str(path), there)
            return
        folder, _, name = there.rpartition("/")
        temporary = f"{folder}/.{name}.tmp-{os.getpid()}"
        store.makedirs(folder, exist_ok=True)
        store.put_file(str(path), temporary)
        store.mv(temporary, there)


def remove(url: str) -> None:
    with at(url) as (store, path):
        store.rm_file(path)


@contextmanager
def at(url: str) -> Iterator[tuple[AbstractFileSystem, str]]:
    """The store that a URL names, and the path in it."""
    whole = opened(url)
    driver = _driver(url)
    with explained(url):
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
def explained(url: str) -> Iterator[None]:
    """Turns whatever is raised inside into StoreError; our own errors pass as they are."""
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
        if isinstance(error, OSError) and error.errno in _FULL:
            raise StoreError(error.errno, "the disk is full; free some space") from error
        raise _unreachable(error) from error


def _unreachable(error: BaseException) -> StoreError:
    return StoreError(
        errno.EIO, f"cannot be reached ({_line(error)}); see the network and the credentials"
    )


def _line(error: BaseException) -> str:
    text = " ".join(without_secrets(str(error)).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"
