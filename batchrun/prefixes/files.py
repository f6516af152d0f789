"""The files of stored prefixes: private, and whole or absent.

A file being written is locked; the system frees the lock however its process ends, which is how
leftovers are told from files that are still being written.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

SUFFIX = ".safetensors"
_TEMPORARY = ".saving-"
_MODEL_NAME = re.compile(r"[0-9a-f]{40}")
_ENTRY_NAME = re.compile(r"[0-9a-f]{40}\.safetensors")


def path_of(folder: Path, model: str, key: str) -> Path:
    return folder / model / f"{key}{SUFFIX}"


def make_private(folder: Path) -> None:
    """Makes a folder that only its owner may enter; one that is there stays as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def digest_of(path: Path) -> str:
    """SHA-256 of the content, hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def temporary(folder: Path) -> Iterator[IO[bytes]]:
    """A new private file in `folder`, to be renamed within the block; else it is removed."""
    with tempfile.NamedTemporaryFile(prefix=_TEMPORARY, dir=folder, delete=False) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            Path(file.name).unlink(missing_ok=True)


def finish(file: IO[bytes], path: Path) -> None:
    """Gives a file from `temporary`, already on disk, its name."""
    os.replace(file.name, path)
    # Some network file systems refuse this for folders.
    with suppress(OSError):
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def model_folders(folder: Path) -> list[Path]:
    """The subfolders that are ours, whoever else keeps things in `folder`. Raises OSError."""
    return [path for path in folder.iterdir() if _MODEL_NAME.fullmatch(path.name) and path.is_dir()]


def entry_files(model_folder: Path) -> list[Path]:
    """Raises OSError."""
    return [path for path in model_folder.iterdir() if _ENTRY_NAME.fullmatch(path.name)]


def discard(path: Path) -> None:
    """Removes a file that nothing refers to any more, if it can be: it is in nobody's way."""
    with suppress(OSError):
        path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Removes what processes that are gone left half-written. Raises OSError."""
    for model_folder in model_folders(folder):
        for path in model_folder.glob(f"{_TEMPORARY}*"):
            # Locked by a process that lives, or removed by another that sweeps.
            with suppress(BlockingIOError, FileNotFoundError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
