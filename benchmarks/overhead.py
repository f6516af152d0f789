"""The runner's own cost and memory: many short rows through a tiny model, by the real command.

    python benchmarks/overhead.py            # 100,000 rows, some minutes
    python benchmarks/overhead.py 20000

README.md says what each figure means. Linux only: memory is read from /proc.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests import tiny  # noqa: E402

EVERY_SECONDS = 0.25
WARM_ROWS = 5_000
PAGE = os.sysconf("SC_PAGE_SIZE")
MB = 1e6


@dataclass(frozen=True)
class Sample:
    """Resident bytes of the process at the time when `rows` had been answered."""

    rows: int
    resident: int


@click.command()
@click.argument("rows", type=click.IntRange(WARM_ROWS + 1), default=100_000)
@click.option("--format", "ending", type=click.Choice(["parquet", "jsonl"]), default="parquet")
def main(rows: int, ending: str) -> None:
    """Send ROWS short chat rows through batchrun; print memory over time and cost a row."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, output = folder / "rows.jsonl", folder / f"out.{ending}"
        _write_rows(source, rows)
        model = tiny.build("llama", folder)
        samples = _watch(_start(source, output, model), output)
        report = json.loads((folder / "out.report.json").read_text(encoding="utf-8"))
    _print_memory(samples, rows)
    _print_cost(report, rows)


def _write_rows(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            content = f"Review {number}: this film was great."
            row = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
            file.write(json.dumps({"custom_id": f"row-{number}", **row}) + "\n")


def _start(source: Path, output: Path, model: Path) -> subprocess.Popen[bytes]:
    flags = ["--output", output, "--model", model, "--quiet"]
    flags += ["--prefix-cache-dir", output.parent / "prefixes"]
    command = [sys.executable, "-m", "batchrun", source, *flags]
    return subprocess.Popen(list(map(str, command)), cwd=ROOT)


def _watch(process: subprocess.Popen[bytes], output: Path) -> list[Sample]:
    """A sample now and then, until the process ends; it must end well."""
    journal = output.with_name(output.name + ".journal")
    samples = [Sample(0, 0)]
    while process.poll() is None:
        rows = max(samples[-1].rows, _rows_in(journal))
        samples.append(Sample(rows, _resident(process.pid)))
        time.sleep(EVERY_SECONDS)
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
    return int(fields[1]) * PAGE


def _print_memory(samples: list[Sample], rows: int) -> None:
    warm = next(sample for sample in samples if sample.rows >= WARM_ROWS)
    print(f"{'rows':>10}{'resident MB':>14}")
    for tenth in range(1, 11):
        at = next((s for s in samples if s.rows * 10 >= rows * tenth), samples[-1])
        print(f"{at.rows:>10,}{at.resident / MB:>14.1f}")
    last, most = samples[-1].resident, max(sample.resident for sample in samples)
    print(f"after {warm.rows:,} rows {warm.resident / MB:.1f} MB")
    for label, value in (("at the end", last), ("at most", most)):
        print(f"{label} {value / MB:.1f} MB, {value / warm.resident - 1:+.1%}")


def _print_cost(report: dict[str, Any], rows: int) -> None:
    phases = report["elapsed"]
    model = phases["prefill"] + phases["decode"]
    own = report["elapsed_time"] - phases["load"] - model
    for name, seconds in [("whole run", report["elapsed_time"]), *phases.items()]:
        print(f"{name:>12}{seconds:>10.2f} s{seconds / rows * 1e3:>10.3f} ms a row")
    print(f"{'own cost':>12}{own:>10.2f} s{own / rows * 1e3:>10.3f} ms a row")


if __name__ == "__main__":
    main()
