"""Many workers: rows a second of 1, 2 and 4 of them, and what 100 would need.

    python benchmarks/scale.py               # labelling rows, one BLAS thread a worker
    python benchmarks/scale.py 600 --most 4
    python benchmarks/scale.py 0             # the simulation alone

README.md says what each figure means. Needs the extra `ray`.
"""

from __future__ import annotations

import json
import os
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from costs import Costs, measure
from sides import run_batchrun, write_rows
from simulated import simulate
from workloads import WORKLOADS


@click.command()
@click.argument("rows", type=int, default=400)
@click.option("--most", type=int, default=2, show_default=True, help="Most workers.")
@click.option("--model", help="Name or folder.  [default: batchrun's own]")
@click.option("--worker-rate", type=float, default=50.0, show_default=True)
def main(rows: int, most: int, model: str | None, worker_rate: float) -> None:
    """Answer ROWS rows with 1, 2, ... workers; then simulate 100 at --worker-rate rows a second."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if rows:
        _compare(rows, min(most, os.cpu_count() or 1), model)
    costs = measure()
    _print_costs(costs)
    for line in simulate(costs, num_workers=100, num_rows=10_000_000, rate=worker_rate):
        click.echo(line)


def _compare(rows: int, most: int, model: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write_rows(folder / "rows.jsonl", list(WORKLOADS["label"](rows)))
        found: dict[int, tuple[Any, dict[str, str]]] = {}
        for count in [0, *(count for count in (1, 2, 4) if count <= most)]:
            found[count] = _run(folder, source, model, count)
            report, answers = found[count]
            rates = {each: rows / _at_work(report) for each, (report, _) in found.items()}
            click.echo(
                f"{_name(count):>12}{rates[count]:>8.2f} rows/s at work,"
                f" {rows / report['elapsed_time']:6.2f} in all;"
                f" {rates[count] / rates.get(1, rates[0]):5.2f} times one worker;"
                f" {sum(answers[key] == found[0][1][key] for key in answers)} of {rows} equal"
            )
    overhead = rows / rates[1] - rows / rates[0]
    click.echo(f"Ray: {overhead / rows * 1e3:+.2f} ms a row beside a run without it")


def _name(count: int) -> str:
    return f"{count} workers" if count else "without Ray"


def _run(folder: Path, source: Path, model: str | None, workers: int) -> tuple[Any, dict[str, str]]:
    flags = ("--ray=local", "--workers", workers) if workers else ()
    cache = ("--prefix-cache-dir", folder / f"prefixes-{workers}")
    ended = run_batchrun(source, folder / f"out-{workers}.jsonl", model, *cache, *flags)
    return ended.report, ended.answers


def _at_work(report: dict[str, Any]) -> float:
    """Seconds from the first prompt token to the last answer, without what starts before."""
    figures = json.loads(Path(report["report"]).read_text(encoding="utf-8"))["figures"]
    history = figures["history"]
    idle = len(list(takewhile(lambda tokens: tokens == 0, history["prefill_tokens"])))
    return float(history["seconds"][-1] - history["seconds"][max(0, idle - 1)])


def _print_costs(costs: Costs) -> None:
    click.echo(f"reader    {costs.read * 1e6:8.0f} µs a row, {costs.row_bytes:6.0f} bytes of it")
    click.echo(f"worker    {costs.prepare * 1e6:8.0f} µs a row to prepare it")
    click.echo(f"books     {costs.book * 1e6:8.0f} µs a row, {costs.done_bytes:6.0f} bytes of it")
    click.echo(f"reused    {costs.reuse * 1e6:8.0f} µs a row in the books")
    click.echo(
        f"output    {costs.write * 1e6:8.0f} µs a row, {costs.output_bytes:6.0f} bytes of it"
    )
    click.echo(f"journal   {costs.journal_bytes:8.0f} bytes a row")


if __name__ == "__main__":
    main()
