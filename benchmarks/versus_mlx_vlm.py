"""batchrun beside mlx-vlm's BatchGenerator, plain and with automatic prefix caching, on rows that
share an instruction: a first run, and a second one with new rows.

    python benchmarks/versus_mlx_vlm.py                  # 64 rows, then 64 new ones, three rounds
    python benchmarks/versus_mlx_vlm.py 16 --new 16 --rounds 1

README.md says what each figure means.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import sides
from sides import Ended
from turns import Outcome, in_turns, print_comparison
from workloads import label

TOKENS_A_BLOCK = 16  # of mlx-vlm's prefix cache, as it comes


@dataclass(frozen=True)
class Job:
    """`first` rows, and then `new` ones with the same instruction."""

    first: int
    new: int
    model: str | None
    max_num_seqs: int

    @property
    def rows(self) -> list[sides.Line]:
        return list(label(self.first + self.new))


@click.command()
@click.argument("first", type=click.IntRange(1), default=64)
@click.option("--new", type=click.IntRange(1), default=64, show_default=True)
@click.option("--model", help="A model's folder or Hub name.  [default: batchrun's default model]")
@click.option("--max-num-seqs", default=64, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--plain/--no-plain", default=True, help="Also without mlx-vlm's prefix caching.")
def main(
    first: int, new: int, model: str | None, max_num_seqs: int, rounds: int, plain: bool
) -> None:
    """Run FIRST labelling rows, and later the NEW ones, through both in turns."""
    job = Job(first, new, model, max_num_seqs)
    turns = [lambda: run_batchrun(job), lambda: run_with_apc(job)]
    if plain:
        turns.append(lambda: run_plain(job))
    outcomes = in_turns(turns, rounds)
    print(f"{first} rows, then {new} new ones, {max_num_seqs} at once, {rounds} rounds")
    if plain:
        print_comparison(outcomes, "batchrun, first", "mlx-vlm, plain")
    print_comparison(outcomes, "batchrun, first", "mlx-vlm APC, first")
    print_comparison(outcomes, "batchrun, second", "mlx-vlm APC, second")
    print_comparison(outcomes, "batchrun, second", "batchrun, no disk")


def run_batchrun(job: Job) -> dict[str, Outcome]:
    """The first file; then the same with new rows at its end, without and with what the first run
    left on disk. Answers of the first are reused, as they would be the next night."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        limit, store = ["--max-num-seqs", job.max_num_seqs], folder / "prefixes"
        stored = [*limit, "--prefix-cache-dir", store]
        first = sides.write_rows(folder / "first.jsonl", job.rows[: job.first])
        longer = sides.write_rows(folder / "longer.jsonl", job.rows)
        output, other = folder / "out.jsonl", folder / "other.jsonl"
        night = sides.run_batchrun(first, output, job.model, *stored)
        other.write_bytes(output.read_bytes())
        cold = sides.run_batchrun(longer, other, job.model, *limit, "--no-prefix-cache")
        warm = sides.run_batchrun(longer, output, job.model, *stored)
        return {
            "batchrun, first": _ours(night, range(job.first)),
            "batchrun, no disk": _ours(cold, range(job.first, job.first + job.new)),
            "batchrun, second": _ours(warm, range(job.first, job.first + job.new)),
        }


def run_with_apc(job: Job) -> dict[str, Outcome]:
    """The first rows; then the new ones alone, with what the first run left on disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ["--apc", folder / "blocks"]
        return {
            "mlx-vlm APC, first": _theirs(folder, job, job.rows[: job.first], flags),
            "mlx-vlm APC, second": _theirs(folder, job, job.rows[job.first :], flags),
        }


def run_plain(job: Job) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory() as name:
        return {"mlx-vlm, plain": _theirs(Path(name), job, job.rows[: job.first], [])}


def _ours(ended: Ended, computed: range) -> Outcome:
    """`computed` are the rows that this run had to answer."""
    report, lines = ended.report, [ended.lines[row] for row in computed]
    own = {
        "prefill_seconds": report["elapsed"]["prefill"],
        "first_answer": _first_answer(lines) - ended.started_at - report["elapsed"]["load"],
        "tokens_computed": report["prompt_tokens"]["computed"],
        "tokens_memory": report["prompt_tokens"]["memory"],
        "tokens_disk": report["prompt_tokens"]["disk"],
    }
    figures = sides.batchrun_figures(ended, len(computed)) | own
    answers = ended.answers
    return Outcome(
        figures, {line["custom_id"]: answers[line["custom_id"]] for line in lines}, report["blas"]
    )


def _first_answer(lines: list[sides.Line]) -> float:
    """Seconds since the epoch."""
    choices = (line["response"]["body"]["choices"][0] for line in lines)
    return min(float(choice["usage"]["finished_at"]) for choice in choices)


def _theirs(folder: Path, job: Job, rows: list[sides.Line], flags: list[object]) -> Outcome:
    file, answers = sides.write_rows(folder / "rows.jsonl", rows), folder / "theirs.jsonl"
    flags = ["--max-num-seqs", job.max_num_seqs, *flags]
    ended = sides.run_peer("peer_mlx_vlm.py", file, answers, job.model, *flags)
    report = ended.report
    from_disk = report["blocks_from_disk"] * TOKENS_A_BLOCK
    own = {
        "prefill_seconds": report["prefill_seconds"],
        "first_answer": report["first_answer"],
        "tokens_computed": report["tokens_computed"],
        "tokens_memory": report["tokens_cached"] - from_disk,
        "tokens_disk": from_disk,
    }
    return Outcome.of(ended, sides.peer_figures(ended, len(rows)) | own)


if __name__ == "__main__":
    main()
