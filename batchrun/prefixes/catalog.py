"""What is stored, for people: listed, verified, cleared and pruned. Needs no MLX.

Raises RunError where the folder cannot be used.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from batchrun.errors import RunError, UsageError
from batchrun.prefixes import files, upkeep
from batchrun.prefixes.eviction import to_evict
from batchrun.prefixes.index import NAME, Damaged, Entry, Index, Use, is_damage, remove_index


@dataclass(frozen=True, slots=True)
class Stored:
    """The prefixes of one model in one form. `longest` counts tokens, `hits` loads; `last_use` is
    seconds since the epoch."""

    model_name: str
    num_prefixes: int
    nbytes: int
    longest: int
    hits: int
    last_use: float


@dataclass(frozen=True, slots=True)
class Removed:
    num_prefixes: int
    nbytes: int


def stored(folder: Path) -> list[Stored]:
    """One for each model, by name."""
    with _opened(folder) as index:
        entries = [] if index is None else index.entries()
    entries = [entry for entry in entries if entry.is_consistent]
    by_name = groupby(entries, key=lambda entry: (entry.model_name, entry.model))
    return [_stored(list(group)) for _, group in by_name]


def verify(folder: Path, *, fix: bool) -> Iterator[tuple[Path, str | None]]:
    """Every file with what is wrong with it, None where nothing is; with `fix`, bad ones go."""
    with _opened(folder) as index:
        for entry in [] if index is None else index.entries():
            fault = upkeep.fault(folder, entry.model, entry.key, entry.digest)
            if fault is not None and fix and index is not None:
                with index.writing():
                    upkeep.remove(folder, index, [entry])
            yield files.path_of(folder, entry.model, entry.key), fault


def clear(folder: Path, model_name: str | None) -> Removed:
    """Removes every prefix, or those of one model. Raises UsageError for a model that has none."""
    if model_name is None:
        with _explained(folder):
            _remove_damaged_index(folder)
    with _opened(folder) as index:
        if index is None:
            return Removed(0, 0)
        entries = index.entries()
        if model_name is not None:
            entries = _of_model(entries, model_name)
        removed = _remove(folder, index, entries)
        upkeep.sweep(folder, index)
        for model_folder in files.model_folders(folder):
            with suppress(OSError):  # not empty
                model_folder.rmdir()
    return removed


def prune(folder: Path, max_bytes: int) -> Removed:
    """Removes what saves least until `max_bytes` are left at most, and what dead runs left."""
    with _opened(folder) as index:
        if index is None:
            return Removed(0, 0)
        upkeep.sweep(folder, index)
        return _remove(folder, index, to_evict(index.uses(), max_bytes, time.time()) or [])


def _stored(entries: list[Entry]) -> Stored:
    return Stored(
        model_name=entries[0].model_name,
        num_prefixes=len(entries),
        nbytes=sum(entry.nbytes for entry in entries),
        longest=max(entry.length for entry in entries),
        hits=sum(entry.hits for entry in entries),
        last_use=max(entry.last_use for entry in entries),
    )


def _of_model(entries: list[Entry], name: str) -> list[Entry]:
    chosen = [entry for entry in entries if entry.model_name == name]
    if not chosen:
        raise UsageError(f"no prefixes of a model {name}; batchrun cache list names all")
    return chosen


def _remove(folder: Path, index: Index, uses: Sequence[Use]) -> Removed:
    with index.writing():
        removed = upkeep.remove(folder, index, uses)
    return Removed(len(removed), sum(use.nbytes for use in removed))


def _remove_damaged_index(folder: Path) -> None:
    try:
        if (folder / NAME).exists():
            with closing(Index(folder)) as index:
                index.check()
    except Damaged:
        remove_index(folder)


@contextmanager
def _opened(folder: Path) -> Iterator[Index | None]:
    """The index, None where nothing was ever stored. A folder that has none is left as it is."""
    with _explained(folder):
        if not folder.is_dir() or not ((folder / NAME).exists() or files.model_folders(folder)):
            yield None
            return
        with closing(Index(folder)) as index:
            yield index


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if is_damage(error):
            raise RunError(
                f"the index in {folder} is damaged ({error}); start over with batchrun cache clear"
            ) from error
        raise RunError(f"cannot use the prefixes in {folder} ({error}); see who owns it") from error
