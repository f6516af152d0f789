"""Files that are at their path whole or not at all."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from batchrun.errors import RunError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path`, and has the permissions of the file there, when
    the block ends without an exception. A symbolic link stays: what it leads to is replaced.

    Whoever calls this holds the lock of the output, so temporary files of earlier runs are dead
    and are removed. Raises RunError when the file cannot be written; `path` is then as it was.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with _explained(path):
        _remove_leftovers(path)
        try:
            with open(temporary, "xb") as file:
                with suppress(FileNotFoundError):
                    shutil.copymode(path, temporary)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def remove(path: Path) -> None:
    """Removes the file at `path` if there is one; raises RunError when that fails."""
    with _explained(path):
        path.unlink(missing_ok=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {_reason(error)} and run again, finished rows are kept"
        ) from error


def _remove_leftovers(path: Path) -> None:
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.tmp-*"):
        leftover.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    if error.errno in _FULL:
        return "the disk is full; free some space"
    return f"{error.strerror or error}; check the disk"


def _sync_folder(folder: Path) -> None:
    # Some network file systems refuse this for folders; the file itself is safe already.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
