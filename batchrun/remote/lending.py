"""Files elsewhere as files here, for as long as a command takes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from batchrun.errors import RunError, UsageError
from batchrun.remote import store
from batchrun.remote.mirror import parts_in
from batchrun.remote.places import refused, target
from batchrun.remote.store import StoreError
from batchrun.remote.urls import given, is_url, name_of, parent

# What makes the name of a neighbour out of an output's.
Beside = Callable[[Path], Path]


@contextmanager
def borrowed(
    named: str, rather: Beside | None = None, along: Iterable[Beside] = ()
) -> Iterator[Path]:
    """The file or folder of parts that a user named, as a path that is good inside, and `along` its
    neighbours that are there; of a URL the neighbour `rather` is enough, where that is there.

    Raises UsageError; one that is raised inside about what is at the path is one about the URL.
    """
    url = given(named)
    if not is_url(url):
        yield Path(url)
        return
    with tempfile.TemporaryDirectory(prefix="batchrun-") as folder:
        path = Path(folder) / name_of(url)
        with refused(url):
            if rather is None or not _bring_beside(url, rather(path)):
                _bring(url.rstrip("/"), path)
            for change in along:
                _bring_beside(url, change(path))
        with _about(url, folder):
            yield path


def _bring(url: str, path: Path) -> None:
    if store.kind(url) != "folder":
        store.download(url, path)
        return
    path.mkdir()
    for part in parts_in(url):
        store.download(part, path / name_of(part))


def _bring_beside(url: str, path: Path) -> bool:
    """Whether it is there."""
    there = parent(url) + path.name
    if store.kind(there) != "file":
        return False
    store.download(there, path)
    return True


@contextmanager
def _about(url: str, folder: str) -> Iterator[None]:
    """Of a copy in `folder`, nobody who named the URL knows."""
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error).replace(f"{folder}/", parent(url))) from error


@contextmanager
def lent(named: str) -> Iterator[Path]:
    """Where to write the file that a user named: for a URL a path from which it goes there when the
    block ends without an exception. Raises UsageError, and RunError where it cannot go there."""
    goal = given(named)
    if not is_url(goal):
        yield Path(goal)
        return
    url, there = target(goal)
    if there == "folder" or goal.endswith("/"):
        raise UsageError(f"{url}: is a folder; name a file in it")
    with tempfile.TemporaryDirectory(prefix="batchrun-") as folder:
        path = Path(folder) / name_of(url)
        with _about(url, folder):
            yield path
        try:
            store.upload(path, url)
        except StoreError as error:
            raise RunError(f"{url}: {error}") from error
