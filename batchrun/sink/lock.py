"""One run per output: a lock file beside it that the system frees however the run ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchrun.errors import OutputBusy, UsageError


@contextmanager
def hold(output: Path) -> Iterator[None]:
    """Holds `output` for this run, and all files beside it that are named after its stem: outputs
    that differ in their ending alone would share them.

    Raises OutputBusy when another run holds it, UsageError when nothing can be written there.
    """
    path = output.with_name(output.stem + ".run.lock")
    descriptor = _acquire(path, output)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # Removed while still held: whoever waits for this file finds out that it is gone.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, output: Path) -> int:
    try:
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            _lock(descriptor, output)
            if _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)
    except OSError as error:
        raise UsageError(
            f"cannot lock the output with {path} ({error.strerror}); choose another place for it"
        ) from error


def _lock(descriptor: int, output: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        who = f"process {holder}" if holder else "another process"
        raise OutputBusy(
            f"{output} is held by another run ({who}); wait for it or choose another output"
        ) from error


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`, not one that its holder removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
