"""lm-evaluation-harness over batchrun beside the harness over mlx-lm's own model class, on
questions after the same worked examples, each side in a process of its own, in turns.

    python benchmarks/versus_harness.py                            # samples/maths.jsonl
    python benchmarks/versus_harness.py gsm8k.jsonl --limit 32     # rows of question and answer

It needs the extra `eval`. README.md says what each figure means.
"""

from __future__ import annotations

import itertools
import tempfile
from functools import partial
from pathlib import Path

import click
import peers
import sides
from turns import Outcome, in_turns, print_comparison

SAMPLE = Path(__file__).parents[1] / "samples" / "maths.jsonl"
SIDES = ("batchrun", "mlxlm")


@click.command()
@click.argument("rows", type=click.Path(exists=True, path_type=Path), default=SAMPLE)
@click.option("--limit", type=click.IntRange(1), help="Only the first so many rows.")
@click.option("--shots", default=8, show_default=True, help="Worked examples before each.")
@click.option("--max-num-seqs", default=32, show_default=True)
@click.option("--model", help="A model's folder or Hub name.  [default: batchrun's default model]")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
def main(
    rows: Path, limit: int | None, shots: int, max_num_seqs: int, model: str | None, rounds: int
) -> None:
    """Ask the questions of ROWS through both in turns."""
    some = itertools.islice(peers.read_rows(rows), limit)
    asked = [
        {"custom_id": str(number), "question": row["question"], "answer": str(row["answer"])}
        for number, row in enumerate(some)
    ]
    flags = ("--shots", shots, "--max-num-seqs", max_num_seqs)
    with tempfile.TemporaryDirectory() as name:
        file = sides.write_rows(Path(name) / "rows.jsonl", asked)
        outcomes = in_turns([partial(_run, file, model, side, *flags) for side in SIDES], rounds)
    print(f"{len(asked)} rows after {shots} worked examples, {max_num_seqs} at once")
    print_comparison(outcomes, *SIDES)


def _run(file: Path, model: str | None, side: str, *flags: object) -> dict[str, Outcome]:
    answers = file.with_name(f"{side}.jsonl")
    ended = sides.run_peer("harness_side.py", file, answers, model, "--through", side, *flags)
    num_rows = len(peers.read_rows(file))
    return {side: Outcome.of(ended, sides.peer_figures(ended, num_rows))}


if __name__ == "__main__":
    main()
