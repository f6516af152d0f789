"""Outputs elsewhere: a run writes to a folder here, as it always does, and what is whole goes to
the URL. The folder is this user's own, one for each folder elsewhere, and keeps the journal.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from batchrun.errors import RunError, UsageError
from batchrun.folders import state_root
from batchrun.remote import store
from batchrun.remote.store import StoreError
from batchrun.remote.urls import given, is_url, is_web, name_of, parent

_PARTS = "part-*.parquet"
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
    name = name_of(named)
    if is_web(named) or not parent(named).partition("://")[2].strip("/"):
        raise UsageError(f"{named}: cannot hold an output; name a file or folder in a bucket")
    url = parent(named) + name
    folder = folder_for("outputs", state_root(), parent(named))
    names: list[str] = []
    try:
        there = store.kind(url)
        if there is None:
            store.check_reach(url)
        elif there == "folder":
            names = [name_of(file) for file in store.files_in(url)]
    except StoreError as error:
        raise UsageError(f"{url}: {error}") from error
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if there == "folder":
        (folder / name).mkdir(exist_ok=True)
    return Place(folder / name, url, tuple(names))


@dataclass(frozen=True, slots=True)
class _Stamp:
    """Tells whether a file was written again."""

    inode: int
    modified_ns: int
    size: int


class Mirror:
    """What is at `url` and beside it, as files here: `output`, a file or a folder of parts, and the
    files `beside` it. Without a URL it does nothing.

    Methods raise RunError where the store cannot be used; what is here stays.
    """

    def __init__(self, output: Path, url: str | None, beside: Iterable[Path]) -> None:
        self._output = output
        self._url = url
        self._beside = tuple(beside)
        self._there: dict[Path, _Stamp] = {}

    def fetch(self) -> None:
        """Brings what is there, in the place of what may be here."""
        if self._url is None:
            return
        self.clear()
        with self._explained("run again, nothing is lost"):
            beside = [path for path in self._beside if store.kind(self._at(path)) == "file"]
            for path in (*beside, *self._outputs_there(self._url)):
                store.download(self._at(path), path)
                self._there[path] = _stamp(path)

    def publish(self) -> None:
        """Brings there what was written here since, and removes what was removed."""
        if self._url is None:
            return
        with self._explained(f"run again, all answers are kept in {self._output.parent}"):
            here = {path: _stamp(path) for path in self._files_here()}
            for path, stamp in here.items():
                if self._there.get(path) != stamp:
                    store.upload(path, self._at(path))
            for path in self._there.keys() - here.keys():
                store.remove(self._at(path))
            self._there = here

    def clear(self) -> None:
        """Removes what is here, but for what the run itself goes on from."""
        if self._url is None:
            return
        for path in self._files_here():
            path.unlink()
        if self._output.is_dir():
            self._output.rmdir()
        self._there = {}

    def _outputs_there(self, url: str) -> list[Path]:
        kind = store.kind(url)
        if kind != "folder":
            return [self._output] if kind else []
        self._output.mkdir(exist_ok=True)
        names = [name_of(file) for file in store.files_in(url)]
        return [self._output / name for name in names if Path(name).match(_PARTS)]

    def _files_here(self) -> list[Path]:
        """Those beside the output first: whoever sees the output finds them there."""
        output = [self._output] if self._output.is_file() else sorted(self._output.glob(_PARTS))
        return [*(path for path in self._beside if path.is_file()), *output]

    def _at(self, path: Path) -> str:
        assert self._url is not None
        if path.parent == self._output:
            return f"{self._url}/{path.name}"
        return parent(self._url) + path.name

    @contextmanager
    def _explained(self, state: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise RunError(f"{self._url}: {error}; {state}") from error


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return _Stamp(found.st_ino, found.st_mtime_ns, found.st_size)


@contextmanager
def borrowed(named: str, rather: Callable[[Path], Path] = lambda path: path) -> Iterator[Path]:
    """The file or folder of parts that a user named, as a path that is good inside; of a URL the
    neighbour that `rather` makes of it is enough, where that is there. Raises UsageError."""
    url = given(named)
    if not is_url(url):
        yield Path(url)
        return
    with tempfile.TemporaryDirectory(prefix="batchrun-") as folder:
        path = Path(folder) / name_of(url)
        try:
            _borrow(url.rstrip("/"), path, rather(path))
        except StoreError as error:
            raise UsageError(f"{url}: {error}") from error
        yield path


def _borrow(url: str, path: Path, other: Path) -> None:
    if other != path and store.kind(parent(url) + other.name) == "file":
        store.download(parent(url) + other.name, other)
        return
    if store.kind(url) != "folder":
        store.download(url, path)
        return
    path.mkdir()
    for file in store.files_in(url):
        if Path(name_of(file)).match(_PARTS):
            store.download(file, path / name_of(file))


@contextmanager
def lent(named: str) -> Iterator[Path]:
    """Where to write the file that a user named: for a URL a path from which it goes there when the
    block ends without an exception. Raises UsageError, and RunError where it cannot go there."""
    url = given(named)
    if not is_url(url):
        yield Path(url)
        return
    target = place(url)
    with tempfile.TemporaryDirectory(prefix="batchrun-") as folder:
        path = Path(folder) / target.path.name
        yield path
        try:
            store.upload(path, url)
        except StoreError as error:
            raise RunError(f"{url}: {error}") from error
