"""batchrun beside mlx-lm's BatchGenerator: the same rows, model, number format and BLAS, each in
a process of its own, in turns.

    python benchmarks/versus_mlx_lm.py                      # 200 mixed rows, three rounds
    python benchmarks/versus_mlx_lm.py label 64 --rounds 5
    python benchmarks/versus_mlx_lm.py --as-installed 24    # mlx-lm as it comes, on 24 of the rows

README.md says what each figure means.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import sides
from turns import Outcome, Turn, in_turns, median, print_comparison
from workloads import WORKLOADS


@dataclass(frozen=True)
class Job:
    """`rows` chat rows in `file`, to be answered up to `max_num_seqs` at once."""

    file: Path
    rows: int
    model: str | None
    max_num_seqs: int


@click.command()
@click.argument("workload", type=click.Choice(list(WORKLOADS)), default="mixed")
@click.argument("rows", type=click.IntRange(1), default=200)
@click.option("--model", help="A model's folder or Hub name.  [default: batchrun's default model]")
@click.option("--max-num-seqs", default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--shared-prefix", is_flag=True)
@click.option("--auto", is_flag=True)
@click.option("--as-installed", type=click.IntRange(0), default=0, metavar="ROWS")
def main(
    workload: str,
    rows: int,
    model: str | None,
    max_num_seqs: int,
    rounds: int,
    shared_prefix: bool,
    auto: bool,
    as_installed: int,
) -> None:
    """Run WORKLOAD of so many ROWS through both in turns, and print figures and their ratios.

    With --shared-prefix, mlx-lm is handed what all prompts begin with, computed once.
    With --auto, batchrun runs once more a round, with --max-num-seqs auto.
    With --as-installed, mlx-lm also runs once on the first ROWS rows, in bfloat16 and on the BLAS
    that its wheel links.
    """
    with tempfile.TemporaryDirectory() as folder:
        lines = list(WORKLOADS[workload](rows))
        file = sides.write_rows(Path(folder) / "rows.jsonl", lines)
        job = Job(file, rows, model, max_num_seqs)
        turns = [
            _turn("batchrun", partial(run_batchrun, job, max_num_seqs)),
            _turn("mlx-lm", partial(run_mlx_lm, job, *["--shared-prefix"] * shared_prefix)),
        ]
        if auto:
            turns.append(_turn("batchrun, auto", partial(run_batchrun, job, "auto")))
        outcomes = in_turns(turns, rounds)
        print(f"{rows} {workload} rows, {max_num_seqs} at once, {rounds} rounds")
        for name in ["batchrun", *["batchrun, auto"] * auto]:
            print_comparison(outcomes, name, "mlx-lm")
        if as_installed:
            some = sides.write_rows(Path(folder) / "some.jsonl", lines[:as_installed])
            few = Job(some, min(rows, as_installed), model, max_num_seqs)
            installed = run_mlx_lm(few, "--dtype", "bfloat16", BATCHRUN_BLAS="off")
            _print_as_installed(median(outcomes["batchrun"], "rows"), installed, few.rows)


def run_batchrun(job: Job, max_num_seqs: int | str) -> Outcome:
    """Without what an earlier round left on disk, which would be an advantage."""
    flags = ["--max-num-seqs", max_num_seqs, "--fresh", "--no-prefix-cache"]
    ended = sides.run_batchrun(job.file, job.file.with_name("ours.jsonl"), job.model, *flags)
    report = ended.report
    own = {
        "prompt_tokens": report["tokens"]["prompt"] / report["elapsed"]["prefill"],
        "decode_tokens": report["generation_tps"],
        "at_once": report["batch"]["peak_running"],
    }
    return Outcome.of(ended, sides.batchrun_figures(ended, job.rows) | own)


def run_mlx_lm(job: Job, *flags: str, **environment: str) -> Outcome:
    answers = job.file.with_name("theirs.jsonl")
    flags = ("--max-num-seqs", str(job.max_num_seqs), *flags)
    ended = sides.run_peer("peer_mlx_lm.py", job.file, answers, job.model, *flags, **environment)
    own = {
        "prompt_tokens": ended.report["prompt_tps"],
        "decode_tokens": ended.report["decode_tps"],
        "at_once": min(job.rows, job.max_num_seqs),
    }
    return Outcome.of(ended, sides.peer_figures(ended, job.rows) | own)


def _turn(name: str, run: Callable[[], Outcome]) -> Turn:
    return lambda: {name: run()}


def _print_as_installed(ours: float, installed: Outcome, rows: int) -> None:
    theirs = installed.figures["rows"]
    print(f"\nmlx-lm as installed, bfloat16, {rows} rows: {theirs:.3g} rows/s")
    print(f"batchrun has {ours / theirs:.1f} times its rows/s")


if __name__ == "__main__":
    main()
