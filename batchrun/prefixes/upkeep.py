"""Index and files brought in line with each other, and entries removed from both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from batchrun.prefixes import files
from batchrun.prefixes.index import Damaged, Index, Use, remove_index


def open_index(folder: Path) -> Index:
    """The index in `folder`, which is made where needed; a damaged one is started anew.

    Raises OSError, sqlite3.Error.
    """
    files.make_private(folder)
    try:
        return Index(folder)
    except Damaged:
        remove_index(folder)
        return Index(folder)


def sweep(folder: Path, index: Index) -> None:
    """Removes leftovers, files that the index does not know, and entries that are damaged or whose
    file is gone.

    Raises OSError, sqlite3.Error.
    """
    files.remove_leftovers(folder)
    with index.writing():
        known = {files.path_of(folder, e.model, e.key): e for e in index.entries()}
        found = {
            path for models in files.model_folders(folder) for path in files.entry_files(models)
        }
        for path in found - known.keys():
            files.discard(path)
        bad = [e for path, e in known.items() if path not in found or not e.is_consistent]
        remove(folder, index, bad)


def remove(folder: Path, index: Index, uses: Iterable[Use]) -> list[Use]:
    """To be called within `index.writing`; returns those that were still there.

    Raises sqlite3.Error.
    """
    removed = []
    for use in uses:
        if index.remove(use.key, use.digest):
            files.discard(files.path_of(folder, use.model, use.key))
            removed.append(use)
    return removed


def fault(folder: Path, model: str, key: str, digest: str) -> str | None:
    """What is wrong with an entry's file, as a verb and more; None if it is as it was written."""
    try:
        found = files.digest_of(files.path_of(folder, model, key))
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if found == digest else "is damaged"
