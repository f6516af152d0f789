"""batchrun beside mlx-vlm's batch_generate on drawings of many sizes, each side in a process of its
own, in turns.

    python benchmarks/versus_mlx_vlm_images.py                   # 500 images, a question on each
    python benchmarks/versus_mlx_vlm_images.py 100 --questions 5

README.md says what each figure means.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import drawn
import sides
from turns import Outcome, Turn, in_turns, print_comparison


@dataclass(frozen=True)
class Job:
    """`expected` are the right answers to the rows in `file`, by custom_id."""

    file: Path
    expected: dict[str, str]
    model: str
    max_num_seqs: int


@click.command()
@click.argument("images", type=click.IntRange(1), default=500)
@click.option("--questions", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--model",
    default=str(drawn.MODEL),
    help="A vision model's folder or Hub name.  [default: samples/shapes-vlm]",
)
@click.option("--max-num-seqs", default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
def main(images: int, questions: int, model: str, max_num_seqs: int, rounds: int) -> None:
    """Ask so many QUESTIONS on each of IMAGES through both in turns."""
    with tempfile.TemporaryDirectory() as name:
        rows = list(drawn.image_rows(Path(name), images, questions))
        file = sides.write_rows(Path(name) / "rows.jsonl", rows)
        expected = {row["custom_id"]: row["expected"] for row in rows}
        job = Job(file, expected, model, max_num_seqs)
        mixed = ["--sizes-mixed", "--max-num-seqs", max_num_seqs]
        turns = [
            _turn("batchrun", partial(run_batchrun, job)),
            _turn("mlx-vlm", partial(run_mlx_vlm, job)),
            _turn("mlx-vlm, sizes mixed", partial(run_mlx_vlm, job, *mixed)),
        ]
        outcomes = in_turns(turns, rounds)
    print(f"{images} images, {questions} questions on each, {max_num_seqs} at once")
    print_comparison(outcomes, "batchrun", "mlx-vlm")
    print_comparison(outcomes, "batchrun", "mlx-vlm, sizes mixed")


def run_batchrun(job: Job) -> Outcome:
    """Without what an earlier round left on disk, which would be an advantage."""
    flags = ["--max-num-seqs", job.max_num_seqs, "--fresh", "--no-prefix-cache"]
    ended = sides.run_batchrun(job.file, job.file.with_name("ours.jsonl"), job.model, *flags)
    phases, rows = ended.report["elapsed"], len(job.expected)
    # Images are decoded while the model loads: here all of it is counted as if it came after.
    apart = ended.report["elapsed_time"] - phases["load"] + phases["prepare"]
    figures = sides.batchrun_figures(ended, rows) | {"rows_prepare_apart": rows / apart}
    return _outcome(job, ended, figures)


def run_mlx_vlm(job: Job, *flags: object) -> Outcome:
    answers = job.file.with_name("theirs.jsonl")
    script, quiet = "peer_mlx_vlm_images.py", {"TRANSFORMERS_VERBOSITY": "error"}
    ended = sides.run_peer(script, job.file, answers, job.model, *flags, **quiet)
    figures = sides.peer_figures(ended, len(job.expected))
    return _outcome(job, ended, figures | {"rows_prepare_apart": figures["rows"]})


def _outcome(job: Job, ended: sides.Ended, figures: dict[str, float]) -> Outcome:
    given = ended.answers
    right = sum(given[name] == answer for name, answer in job.expected.items())
    return Outcome.of(ended, figures | {"right": right / len(given)})


def _turn(name: str, run: Callable[[], Outcome]) -> Turn:
    return lambda: {name: run()}


if __name__ == "__main__":
    main()
