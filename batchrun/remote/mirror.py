"""Outputs elsewhere: a run writes to a folder here, as it always does, and what is whole goes to
the URL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batchrun.errors import RunError
from batchrun.remote import store
from batchrun.remote.store import StoreError
from batchrun.remote.urls import name_of, parent

_PARTS = "part-*.parquet"


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
        # None for what was not brought.
        self._there: dict[Path, _Stamp | None] = {}

    def replace(self) -> None:
        """Begins with nothing here: what is there will go."""
        if self._url is None:
            return
        self.clear()
        with self._explained("run again, nothing is lost"):
            beside = [path for path in self._beside if store.kind(self._at(path)) == "file"]
            self._there = dict.fromkeys((*beside, *self._outputs_there(self._url)))

    def fetch(self) -> None:
        """Brings what is there, in the place of what may be here."""
        self.replace()
        with self._explained("run again, nothing is lost"):
            for path in self._there:
                store.download(self._at(path), path)
                self._there[path] = _stamp(path)

    def publish(self) -> None:
        """Brings there what was written here since, and removes what is not here."""
        if self._url is None:
            return
        with self._explained(f"run again, all answers are kept in {self._output.parent}"):
            here: dict[Path, _Stamp | None] = {p: _stamp(p) for p in self._files_here()}
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
        return [self._output / name_of(part) for part in parts_in(url)]

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


def parts_in(folder: str) -> list[str]:
    return [file for file in store.files_in(folder) if Path(name_of(file)).match(_PARTS)]
