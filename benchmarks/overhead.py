"""The runner's own cost and memory: many short rows through a tiny model, by the real command.

    python benchmarks/overhead.py            # 100,000 rows, some minutes
    python benchmarks/overhead.py 20000

README.md says what each figure means. Linux only.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from watching import print_memory, run_batchrun

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests import tiny  # noqa: E402

EVERY_SECONDS = 0.25
WARM_ROWS = 5_000


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
        samples = run_batchrun(source, output, model, every_seconds=EVERY_SECONDS)
        report = json.loads((folder / "out.report.json").read_text(encoding="utf-8"))
    print_memory(samples, rows, warm_rows=WARM_ROWS)
    _print_cost(report, rows)


def _write_rows(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            content = f"Review {number}: this film was great."
            row = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
            file.write(json.dumps({"custom_id": f"row-{number}", **row}) + "\n")


def _print_cost(report: dict[str, Any], rows: int) -> None:
    phases = report["elapsed"]
    model = phases["prefill"] + phases["decode"]
    own = report["elapsed_time"] - phases["load"] - model
    for name, seconds in [("whole run", report["elapsed_time"]), *phases.items()]:
        print(f"{name:>12}{seconds:>10.2f} s{seconds / rows * 1e3:>10.3f} ms a row")
    print(f"{'own cost':>12}{own:>10.2f} s{own / rows * 1e3:>10.3f} ms a row")


if __name__ == "__main__":
    main()
