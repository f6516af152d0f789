"""batchrun beside mlx-lm's BatchGenerator: the same rows, model, number format and BLAS, each in
a process of its own, in turns.

    python benchmarks/versus_mlx_lm.py                      # 200 mixed rows, three rounds
    python benchmarks/versus_mlx_lm.py label 64 --rounds 5
    python benchmarks/versus_mlx_lm.py --as-installed 24    # mlx-lm as it comes, on 24 of the rows

README.md says what each figure means.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click
from workloads import WORKLOADS

from batchrun.config import ModelConfig
from batchrun.models import locate

HERE = Path(__file__).parent
GB = 1e9


@dataclass(frozen=True)
class Figures:
    """One process's run. Rates are per second, memory is GB at the peak."""

    rows: float
    rows_whole_process: float
    prompt_tokens: float
    decode_tokens: float
    memory_process: float
    memory_arrays: float


@dataclass(frozen=True)
class Outcome:
    """`answers` are texts by custom_id."""

    figures: Figures
    answers: dict[str, str]
    blas: str


@dataclass(frozen=True)
class Job:
    """`rows` chat rows in `file`, to be answered up to `max_num_seqs` at once."""

    file: Path
    rows: int
    model: str | None
    max_num_seqs: int
    shared_prefix: bool = False

    @property
    def folder(self) -> Path:
        return self.file.parent


@click.command()
@click.argument("workload", type=click.Choice(list(WORKLOADS)), default="mixed")
@click.argument("rows", type=click.IntRange(1), default=200)
@click.option("--model", help="A model's folder or Hub name.  [default: batchrun's default model]")
@click.option("--max-num-seqs", default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--shared-prefix", is_flag=True)
@click.option("--as-installed", type=click.IntRange(0), default=0, metavar="ROWS")
def main(
    workload: str,
    rows: int,
    model: str | None,
    max_num_seqs: int,
    rounds: int,
    shared_prefix: bool,
    as_installed: int,
) -> None:
    """Run WORKLOAD of so many ROWS through both in turns, and print figures and their ratios.

    With --shared-prefix, mlx-lm is handed what all prompts begin with, computed once.
    With --as-installed, mlx-lm also runs once on the first ROWS of them, in bfloat16 and on the
    BLAS that its wheel links.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = _job(Path(folder), workload, rows, model, max_num_seqs)
        job = replace(job, shared_prefix=shared_prefix)
        ours: list[Outcome] = []
        theirs: list[Outcome] = []
        for number in range(rounds):
            pair = [(ours, run_batchrun), (theirs, run_mlx_lm)]
            for outcomes, run in pair if number % 2 == 0 else reversed(pair):
                outcomes.append(run(job))
                print(f"round {number + 1}: {run.__name__} {outcomes[-1].figures}", file=sys.stderr)
        print(f"{rows} {workload} rows, {max_num_seqs} at once, {rounds} rounds")
        print(f"BLAS: batchrun {ours[0].blas}, mlx-lm {theirs[0].blas}\n")
        _print_table(ours, theirs)
        _print_differences(ours[0].answers, theirs[0].answers)
        if as_installed:
            some = _job(Path(folder), workload, min(rows, as_installed), model, max_num_seqs)
            _print_as_installed(ours, run_mlx_lm(some, "bfloat16", BATCHRUN_BLAS="off"), some.rows)


def run_batchrun(job: Job) -> Outcome:
    """The command itself; "rows" leaves out only the loading of the model."""
    output = job.folder / "ours.jsonl"
    flags = ["--output", output, "--max-num-seqs", job.max_num_seqs, "--fresh", "--json", "--quiet"]
    flags += ["--no-prefix-cache"]  # what an earlier round left on disk would be an advantage
    if job.model:
        flags += ["--model", job.model]
    report, seconds = _run(["-m", "batchrun", job.file, *flags])
    figures = Figures(
        rows=job.rows / (report["elapsed_time"] - report["elapsed"]["load"]),
        rows_whole_process=job.rows / seconds,
        prompt_tokens=report["tokens"]["prompt"] / report["elapsed"]["prefill"],
        decode_tokens=report["generation_tps"],
        memory_process=report["peak_process_memory"],
        memory_arrays=report["peak_memory"],
    )
    return Outcome(figures, _read(output, _text_of_output_line), report["blas"])


def run_mlx_lm(job: Job, dtype: str = "float32", **environment: str) -> Outcome:
    """The peer; "rows" counts the generator's time alone."""
    answers = job.folder / "theirs.jsonl"
    model = locate(ModelConfig(model=job.model), click.echo).path
    flags: list[object] = ["--dtype", dtype, "--max-num-seqs", job.max_num_seqs]
    flags += ["--shared-prefix"] * job.shared_prefix
    command = [HERE / "peer_mlx_lm.py", model, job.file, answers, *flags]
    peer, seconds = _run(command, **environment)
    figures = Figures(
        rows=job.rows / peer["seconds"],
        rows_whole_process=job.rows / seconds,
        prompt_tokens=peer["prompt_tps"],
        decode_tokens=peer["decode_tps"],
        memory_process=peer["process_bytes"] / GB,
        memory_arrays=peer["array_bytes"] / GB,
    )
    return Outcome(figures, _read(answers, lambda line: line["text"]), peer["blas"])


def _job(folder: Path, workload: str, rows: int, model: str | None, max_num_seqs: int) -> Job:
    file = folder / f"{workload}-{rows}.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(line) + "\n" for line in WORKLOADS[workload](rows))
    return Job(file, rows, model, max_num_seqs)


def _run(command: Sequence[object], **environment: str) -> tuple[dict[str, Any], float]:
    """What a Python process prints, and how many seconds it took from start to end."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout), time.perf_counter() - start


def _read(path: Path, text: Callable[[dict[str, Any]], str]) -> dict[str, str]:
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line["custom_id"]: text(line) for line in lines}


def _text_of_output_line(line: dict[str, Any]) -> str:
    return str(line["response"]["body"]["choices"][0]["message"]["content"])


def _print_table(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> None:
    """Figures as min / median / max; the ratio is taken within each round, where both sides had
    much the same machine."""
    print(f"{'':20}{'batchrun':>26}{'mlx-lm':>26}{'ratio':>26}")
    for field in fields(Figures):
        mine = [getattr(outcome.figures, field.name) for outcome in ours]
        other = [getattr(outcome.figures, field.name) for outcome in theirs]
        ratios = [a / b for a, b in zip(mine, other, strict=True)]
        print(f"{field.name:20}{_spread(mine):>26}{_spread(other):>26}{_spread(ratios):>26}")


def _spread(values: Sequence[float]) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return " / ".join(f"{value:.3g}" for value in (low, middle, high))


def _print_differences(ours: dict[str, str], theirs: dict[str, str]) -> None:
    different = [name for name, text in ours.items() if theirs[name] != text]
    verdict = "all equal" if not different else f"{len(different)} differ: {', '.join(different)}"
    print(f"\nanswers of {len(ours)} rows: {verdict}")


def _print_as_installed(ours: Sequence[Outcome], installed: Outcome, rows: int) -> None:
    mine = statistics.median(outcome.figures.rows for outcome in ours)
    ratio = mine / installed.figures.rows
    print(f"mlx-lm as installed, bfloat16, {rows} rows: {installed.figures.rows:.3g} rows/s")
    print(f"batchrun has {ratio:.1f} times its rows/s")


if __name__ == "__main__":
    main()
