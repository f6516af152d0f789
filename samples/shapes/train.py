"""Trains samples/shapes-vlm from nothing: `python -m samples.shapes.train`, from the repository.

Three phases: the tower alone, tower and language together, and the same at a lower rate with
stranger colours. A training that is stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from batchrun import device

# The products are small: a second thread of the BLAS costs more than it brings.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
device.prepare()  # before MLX is imported, so that it finds a quick BLAS

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
import mlx.optimizers as optim  # noqa: E402
from mlx.utils import tree_flatten, tree_unflatten  # noqa: E402
from mlx_vlm.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor  # noqa: E402

from samples.shapes import batches, forward, model  # noqa: E402
from samples.shapes.draw import COLOURS, KINDS, MOST_SHAPES  # noqa: E402

FOLDER = Path(__file__).parents[1] / "shapes-vlm"
_TURNS = 2
_CELL_SHARE = 0.3
_WARM_UP = 100
_REPORT_EVERY = 100
_SAVE_EVERY = 500


@dataclass(frozen=True, slots=True)
class Phase:
    """`mix[n]` conversations on n images a step; `answers` false trains the tower alone.

    The rate is held for `hold` of the steps, then falls in a half cosine to a twentieth.
    """

    name: str
    steps: int
    rate: float
    hold: float
    mix: tuple[int, int, int, int]
    stray: int
    answers: bool = True


PHASES = (
    Phase("tower", 2500, 2e-3, 0.5, (0, 48, 0, 0), 24, answers=False),
    Phase("answers", 3200, 1.5e-3, 0.6, (8, 24, 6, 4), 24),
    Phase("finish", 1300, 7e-4, 0.0, (8, 24, 6, 4), 40),
)


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
@click.option("--checkpoints", type=click.Path(path_type=Path), default=Path("out/shapes"))
def main(output: Path, checkpoints: Path) -> None:
    """Train the model and write its folder."""
    train(PHASES, output, checkpoints, report=click.echo)


def train(
    phases: Sequence[Phase], output: Path, checkpoints: Path, report: Callable[[str], object]
) -> None:
    """Train a new model, or go on from its checkpoints, and write its folder to `output`."""
    words = model.tokenizer()
    trained = forward.Trained(model.build(words), len(COLOURS) + 1, len(KINDS) + 1, MOST_SHAPES)
    model.save(checkpoints / "start", trained.model, words)
    processor = Qwen2VLProcessor.from_pretrained(checkpoints / "start")
    for phase in phases:
        run_phase(phase, trained, processor, checkpoints / f"{phase.name}.safetensors", report)
    model.save(output, trained.model, words)


def run_phase(
    phase: Phase,
    trained: forward.Trained,
    processor: Qwen2VLProcessor,
    checkpoint: Path,
    report: Callable[[str], object],
) -> None:
    optimizer = optim.AdamW(_rate(phase), betas=[0.9, 0.98], weight_decay=0.01)
    optimizer.init(trained.trainable_parameters())
    done = _restore(checkpoint, trained, optimizer)
    step = _compiled_step(phase, trained, optimizer)
    recent: deque[tuple[float, float]] = deque(maxlen=_REPORT_EVERY)
    make, start = partial(_batch, phase, processor), time.monotonic()
    for number, batch in enumerate(batches.ahead(make, range(done, phase.steps)), done + 1):
        loss, right = step(batch)
        mx.eval(loss, right, trained.parameters(), optimizer.state)
        recent.append((loss.item(), right.item()))
        if number % _REPORT_EVERY == 0 or number == phase.steps:
            report(f"{phase.name} {number}: {_summary(recent)}, {time.monotonic() - start:.0f} s")
        if number % _SAVE_EVERY == 0 or number == phase.steps:
            _save(checkpoint, number, trained, optimizer)


def _compiled_step(
    phase: Phase, trained: forward.Trained, optimizer: optim.Optimizer
) -> Callable[[dict[str, Any]], tuple[mx.array, mx.array]]:
    state = [trained.state, optimizer.state]

    def losses(trained: forward.Trained, batch: dict[str, Any]) -> tuple[mx.array, mx.array]:
        shown = batch["pictures"]
        tower = trained.model.vision_tower
        found = forward.features(tower, shown["patches"], shown["places"], shown["used"])
        cells = forward.cell_losses(trained, found, shown)
        if not phase.answers:
            return cells
        answers = [forward.answer_losses(trained, found, texts) for texts in batch["texts"]]
        shares = [len(texts["answers"]) / sum(phase.mix) for texts in batch["texts"]]
        loss = sum(share * one.loss for share, one in zip(shares, answers, strict=True))
        right = sum(share * one.right for share, one in zip(shares, answers, strict=True))
        return loss + _CELL_SHARE * cells.loss, right

    gradients = nn.value_and_grad(trained, losses)

    @partial(mx.compile, inputs=state, outputs=state)
    def step(batch: dict[str, Any]) -> tuple[mx.array, mx.array]:
        (loss, right), grads = gradients(trained, batch)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        optimizer.update(trained, grads)
        return loss, right

    return step


def _batch(phase: Phase, processor: Qwen2VLProcessor, number: int) -> dict[str, Any]:
    """Long and short texts apart: the time they take grows with the square of the longest."""
    turns = _TURNS if phase.answers else 1
    talks = batches.conversations(f"{phase.name} {number}", phase.mix, turns, phase.stray)
    drawings = [drawn for talk in talks for drawn in talk.drawings[: talk.images]]
    batch: dict[str, Any] = {"pictures": _arrays(batches.pictures(drawings, processor))}
    if phase.answers:
        short = [talk for talk in talks if talk.images < 2]
        long = [talk for talk in talks if talk.images >= 2]
        seen = sum(talk.images for talk in short)
        batch["texts"] = [
            _arrays(batches.texts(short, processor, turns, first=0)),
            _arrays(batches.texts(long, processor, turns, first=seen)),
        ]
    return batch


def _arrays(part: batches.Pictures | batches.Texts) -> dict[str, mx.array]:
    return {name: mx.array(array) for name, array in part._asdict().items()}


def _rate(phase: Phase) -> Callable[[mx.array], mx.array]:
    held = phase.hold * phase.steps

    def rate(step: mx.array) -> mx.array:
        fall = mx.clip((step - held) / (phase.steps - held), 0.0, 1.0)
        falling = 0.05 + 0.95 * (1 + mx.cos(math.pi * fall)) / 2
        return phase.rate * mx.minimum((step + 1) / _WARM_UP, falling)

    return rate


def _save(path: Path, done: int, trained: forward.Trained, optimizer: optim.Optimizer) -> None:
    arrays = {
        **{f"weights.{name}": array for name, array in tree_flatten(trained.parameters())},
        **{f"optimizer.{name}": array for name, array in tree_flatten(optimizer.state)},
    }
    partial_file = path.with_suffix(".part.safetensors")
    mx.save_safetensors(str(partial_file), arrays, metadata={"done": str(done)})
    partial_file.rename(path)


def _restore(path: Path, trained: forward.Trained, optimizer: optim.Optimizer) -> int:
    """Steps that the checkpoint has behind it; 0 where there is none."""
    if not path.exists():
        return 0
    arrays, metadata = mx.load(str(path), return_metadata=True)
    kept: dict[str, Any] = tree_unflatten(list(arrays.items()))
    trained.update(kept["weights"])
    optimizer.state = kept["optimizer"]
    return int(metadata["done"])


def _summary(recent: Collection[tuple[float, float]]) -> str:
    loss, right = (sum(values) / len(recent) for values in zip(*recent, strict=True))
    return f"loss {loss:.3f}, right {right:.3f}"


if __name__ == "__main__":
    main()
