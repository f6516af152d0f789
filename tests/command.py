"""The real command in a process of its own, and its journal seen from outside."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEADLINE = 60.0  # far beyond what anything here takes; only a hanging process meets it
_POLL = 0.02


class Command:
    """`batchrun in.jsonl -o OUTPUT FLAGS` in `folder`, started at once; `model` None is the
    default model."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        model: Path | None,
        output: str = "out.parquet",
        inputs: Sequence[str] = ("in.jsonl",),
        program: Sequence[str] = ("-m", "batchrun"),
        **options: Any,
    ):
        self.output = folder / output
        self.journal = folder / f"{output}.journal"
        command = [sys.executable, *program, *inputs, "-o", output]
        self.process = subprocess.Popen(
            [*command, *(("--model", str(model)) if model else ()), *flags],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **({"env": {**os.environ, "PYTHONPATH": str(ROOT)}} | options),
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> tuple[int, str, str]:
        """Exit status, stdout and stderr, once it has ended."""
        try:
            stdout, stderr = self.process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self.stop()  # or a later test is blamed for what this one left
            raise
        return self.process.returncode, stdout, stderr

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; AssertionError if the process ends before."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(_POLL)

    def until_answered(self, count: int) -> None:
        """Wait until the journal holds `count` answers, with no output in sight."""

        def is_so() -> bool:
            assert not self.output.exists()
            return len(answers(self.journal)) >= count

        self.until(is_so)

    def stop(self) -> None:
        """Whatever state it is in, it ends now."""
        self.process.kill()
        self.process.communicate(timeout=DEADLINE)


def answers(journal: Path) -> dict[str, int]:
    """Keys of the committed answers with the moment each was finished, running or not.

    They are read from a copy, so that a dead process's journal stays as it was left.
    """
    if not journal.exists():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        for path in journal.parent.glob(f"{journal.name}*"):
            if not path.name.endswith("-shm"):
                with suppress(FileNotFoundError):  # SQLite's own files come and go
                    shutil.copy(path, folder)
        return _read(Path(folder) / journal.name)


def _read(path: Path) -> dict[str, int]:
    db = sqlite3.connect(path)
    try:
        return dict(db.execute("SELECT key, finished_at FROM answers"))
    except sqlite3.DatabaseError:
        return {}  # caught in the making
    finally:
        db.close()
