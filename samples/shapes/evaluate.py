"""How often the model is right on drawings it never saw: `python -m samples.shapes.evaluate`.

Each row goes alone through mlx-vlm's own processor and `generate`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import click

from batchrun import device

device.prepare()  # before MLX is imported, so that it finds a quick BLAS

import mlx_vlm  # noqa: E402

from samples.shapes.draw import picture  # noqa: E402
from samples.shapes.questions import Conversation, conversation  # noqa: E402

FOLDER = Path(__file__).parents[1] / "shapes-vlm"
Answer = Callable[[Conversation], str]


def held_out(images: int, number: int, stray: int = 24) -> Conversation:
    """A conversation of one question; training's seeds are other strings."""
    rng = random.Random(f"held out {images} {number}")
    return conversation(rng, images, stray=stray)


def answerer(folder: Path) -> Answer:
    """What the model in this folder answers, greedily, to a conversation's last question."""
    model, processor = mlx_vlm.load(str(folder))

    def answer(talk: Conversation) -> str:
        messages = talk.messages(lambda _: {"type": "image"})
        prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        shown: dict[str, Any] = {}
        if talk.images:
            shown["image"] = [picture(drawn) for drawn in talk.drawings]
        result = mlx_vlm.generate(model, processor, prompt, max_tokens=4, temperature=0.0, **shown)
        return str(result.text).strip()

    return answer


@click.command()
@click.option("--model", default=FOLDER, type=click.Path(path_type=Path), show_default=True)
@click.option("--rows", default=500, show_default=True, help="Rows of each number of images.")
@click.option("--stray", default=24, show_default=True, help="How far colours are off, of 255.")
@click.option("--misses", is_flag=True, help="Show what was answered wrongly.")
def main(model: Path, rows: int, stray: int, misses: bool) -> None:
    """Print the share of right answers by number of images and kind of question."""
    answer = answerer(model)
    for images in (1, 2, 3, 0):
        right: dict[str, list[bool]] = defaultdict(list)
        for number in range(rows):
            talk = held_out(images, number, stray)
            given, (question,) = answer(talk), talk.questions
            right[question.kind].append(given == question.answer)
            if misses and given != question.answer:
                click.echo(f"{talk.drawings} {question} {given}", err=True)
        kinds = "  ".join(f"{kind} {_share(hits)}" for kind, hits in sorted(right.items()))
        click.echo(f"{images} images: {_share(list(chain(*right.values())))}  ({kinds})")


def _share(hits: list[bool]) -> str:
    return f"{sum(hits) / len(hits):.1%}"


if __name__ == "__main__":
    main()
