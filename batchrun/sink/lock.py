"""One run per output: a lock file beside it that the system frees however the run ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from batchrun.errors import OutputBusy, UsageError

POLL_SECONDS = 0.25


@contextmanager
def hold(
    output: Path, keeps_waiting: Callable[[], bool] | None = None, name: str | None = None
) -> Iterator[None]:
    """Holds `output` for this run, and all files beside it that are named after its stem: outputs
    that differ in their ending alone would share them. `name` is what users know it by.

    While another run holds it, this waits for as long as `keeps_waiting` says; None does not.
    Raises OutputBusy when another run holds it, UsageError when nothing can be written there.
    """
    path = output.with_name(output.stem + ".run.lock")
    descriptor = _wait(path, name or str(output), keeps_waiting)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # Removed while still held: whoever waits for this file finds out that it is gone.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _wait(path: Path, output: str, keeps_waiting: Callable[[], bool] | None) -> int:
    while True:
        try:
            return _acquire(path, output)
        except OutputBusy:
            if keeps_waiting is None or not keeps_waiting():
                raise
        time.sleep(POLL_SECONDS)


def _acquire(path: Path, output: str) -> int:
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


def _lock(descriptor: int, output: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        who = f"process {holder}" if holder else "another process"
        raise OutputBusy(
            f"{output} is held by another run ({who}): wait for it, as with --wait, or choose"
            " another output"
        ) from error


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`, not one that its holder removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
