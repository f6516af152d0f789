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

import click
from costs import Costs, measure
from sides import Ended, run_batchrun, write_rows
from simulated import simulate
from workloads import WORKLOADS


@click.command()
@click.argument("rows", type=int, default=800)
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
        found: dict[int, Ended] = {}
        for count in [0, *(count for count in (1, 2, 4) if count <= most)]:
            found[count] = _run(folder, source, model, count)
            _print(rows, found, count)
        each = (_at_work(found[1]) - _at_work(found[0])) / rows
    click.echo(f"Ray: {each * 1e3:+.2f} ms a row beside a run without it")


def _print(rows: int, found: dict[int, Ended], count: int) -> None:
    ended, one = found[count], found.get(1, found[0])
    equal = sum(text == found[0].answers[key] for key, text in ended.answers.items())
    click.echo(
        f"{f'{count} workers' if count else 'without Ray':>12}"
        f"{rows / _at_work(ended):8.2f} rows/s at work, {_at_work(one) / _at_work(ended):.2f} times"
        f" one worker;{rows / ended.seconds:7.2f} and {one.seconds / ended.seconds:.2f} of the"
        f" whole command; {equal} of {rows} equal"
    )


def _run(folder: Path, source: Path, model: str | None, workers: int) -> Ended:
    flags = ("--ray=local", "--workers", workers) if workers else ()
    cache = ("--prefix-cache-dir", folder / f"prefixes-{workers}")
    return run_batchrun(source, folder / f"out-{workers}.jsonl", model, *cache, *flags)


def _at_work(ended: Ended) -> float:
    """Seconds from the first prompt token to the last answer, without what starts before."""
    report = Path(ended.report["report"]).read_text(encoding="utf-8")
    history = json.loads(report)["figures"]["history"]
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
