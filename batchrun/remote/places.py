"""Where outputs go: for a URL there is a folder here too, this user's own, one for each folder
elsewhere, which keeps the journal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from batchrun.errors import UsageError
from batchrun.folders import state_root
from batchrun.remote import store
from batchrun.remote.store import StoreError
from batchrun.remote.urls import given, is_url, is_web, name_of, parent

_NOT_FOR_NAMES = re.compile(r"[^a-z0-9]+")


class Place(NamedTuple):
    """Where an output is written here, and where it goes from there, if anywhere; `names` are the
    files that are there already, if it is a folder."""

    path: Path
    url: str | None = None
    names: tuple[str, ...] = ()


def folder_for(kind: str, root: Path, url: str) -> Path:
    """The folder below `root` that stands for the folder `url`."""
    words = _NOT_FOR_NAMES.sub("-", url.partition("://")[2].lower()).strip("-")[-40:]
    return root / kind / f"{words}-{sha256(url.encode()).hexdigest()[:16]}"


def place(output: str) -> Place:
    """Where the output that a user named is written. Raises UsageError where the URL cannot be
    reached, or nothing can be written to its kind."""
    named = given(output)
    if not is_url(named):
        return Place(Path(named))
    url, there = target(named)
    folder = folder_for("outputs", state_root(), parent(url))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name_of(url)
    if there != "folder":
        return Place(path, url)
    path.mkdir(exist_ok=True)
    with refused(url):
        return Place(path, url, tuple(map(name_of, store.files_in(url))))


def target(url: str) -> tuple[str, store.Kind | None]:
    """A URL that can be written to, without a slash at its end, and what is there."""
    if is_web(url) or not parent(url).partition("://")[2].strip("/"):
        raise UsageError(f"{url}: cannot hold an output; name a file or folder in a bucket")
    url = parent(url) + name_of(url)
    with refused(url):
        there = store.kind(url)
        if there is None:
            store.check_reach(url)
    return url, there


@contextmanager
def refused(url: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise UsageError(f"{url}: {error}") from error
