"""Watches a run of batchrun from outside: resident memory as answers come in. Linux only, as memory
is read from /proc.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

MB = 1e6
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """Resident bytes of the process at the time when `rows` had been answered."""

    rows: int
    resident: int


def run_batchrun(rows: Path, output: Path, model: Path, *, every_seconds: float) -> list[Sample]:
    """Answer the file `rows`, and look at the process from time to time. It must end well."""
    flags = ["--output", output, "--model", model, "--quiet"]
    flags += ["--prefix-cache-dir", output.parent / "prefixes"]
    command = [sys.executable, "-m", "batchrun", rows, *flags]
    return _watch(subprocess.Popen(list(map(str, command))), output, every_seconds)


def print_memory(samples: Sequence[Sample], rows: int, *, warm_rows: int) -> None:
    """Memory at every tenth of the rows, and how it grew after the first `warm_rows`."""
    warm = next(sample for sample in samples if sample.rows >= warm_rows)
    print(f"{'rows':>10}{'resident MB':>14}")
    for tenth in range(1, 11):
        at = next((s for s in samples if s.rows * 10 >= rows * tenth), samples[-1])
        print(f"{at.rows:>10,}{at.resident / MB:>14.1f}")
    last, most = samples[-1].resident, max(sample.resident for sample in samples)
    print(f"after {warm.rows:,} rows {warm.resident / MB:.1f} MB")
    for label, value in (("at the end", last), ("at most", most)):
        print(f"{label} {value / MB:.1f} MB, {value / warm.resident - 1:+.1%}")


def _watch(process: subprocess.Popen[bytes], output: Path, every_seconds: float) -> list[Sample]:
    journal = output.with_name(output.name + ".journal")
    samples = [Sample(0, 0)]
    while process.poll() is None:
        rows = max(samples[-1].rows, _rows_in(journal))
        samples.append(Sample(rows, _resident(process.pid)))
        time.sleep(every_seconds)
    if process.returncode:
        sys.exit(f"batchrun exited with {process.returncode}")
    return [sample for sample in samples if sample.resident]


def _rows_in(journal: Path) -> int:
    """Answers in the journal, 0 where there is none yet or none any more."""
    try:
        with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
            return db.execute("SELECT max(rowid) FROM answers").fetchone()[0] or 0
    except sqlite3.OperationalError:
        return 0


def _resident(pid: int) -> int:
    """0 for a process that has just ended."""
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * _PAGE
