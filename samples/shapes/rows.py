"""Writes samples/shapes.jsonl, shapes.parquet and their pictures: `python -m samples.shapes.rows`.

The answer that is right stands beside each question. Drawings in a row differ in what is asked,
so that an answer read from a neighbour's picture, or from the wrong one of a row's own, is wrong.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from samples.shapes.draw import Drawing, picture
from samples.shapes.questions import Conversation, conversation

FOLDER = Path(__file__).parents[1]
_IMAGES = (1, 1, 2, 1, 0, 1, 3, 1) * 3  # of each row
_SCHEMA = pa.schema(
    [
        ("custom_id", pa.string()),
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("question", pa.string()),
        ("expected", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation of one question, and where its pictures lie, relative to the JSONL."""

    name: str
    talk: Conversation

    @property
    def expected(self) -> str:
        return self.talk.questions[0].answer

    def path(self, place: int) -> str:
        return f"shapes/images/{self.name}{'abc'[place]}.png"


def samples() -> Iterator[Sample]:
    """The rows, in order; no two neighbours have the same answer."""
    rng, before = random.Random("samples"), ""
    for number, images in enumerate(_IMAGES, 1):
        while True:
            talk = conversation(rng, images)
            if talk.questions[0].answer != before and _tells_apart(talk):
                break
        before = talk.questions[0].answer
        yield Sample(f"{number:02}", talk)


def chat_row(sample: Sample) -> dict[str, Any]:
    def part(place: int) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": sample.path(place)}}

    return {
        "custom_id": f"shapes-{sample.name}",
        "messages": sample.talk.messages(part),
        "max_tokens": 4,
        "temperature": 0,
        "expected": sample.expected,
    }


def table_row(sample: Sample) -> dict[str, Any]:
    """Of a sample with one image at most."""
    (message,) = (m for m in sample.talk.messages(lambda _: {}) if m["role"] == "user")
    text = next(part["text"] for part in message["content"] if part.get("text"))
    image = None
    if sample.talk.images:
        image = {"bytes": png(sample.talk.drawings[0]), "path": Path(sample.path(0)).name}
    return {
        "custom_id": f"shapes-{sample.name}",
        "image": image,
        "question": text,
        "expected": sample.expected,
    }


def png(drawn: Drawing) -> bytes:
    buffer = io.BytesIO()
    picture(drawn).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def write(folder: Path) -> None:
    (folder / "shapes/images").mkdir(parents=True, exist_ok=True)
    made = list(samples())
    for sample in made:
        for place in range(sample.talk.images):
            (folder / sample.path(place)).write_bytes(png(sample.talk.drawings[place]))
    lines = "".join(json.dumps(chat_row(sample)) + "\n" for sample in made)
    (folder / "shapes.jsonl").write_text(lines, encoding="utf-8")
    rows = [table_row(sample) for sample in made if sample.talk.images <= 1]
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), folder / "shapes.parquet")


def _tells_apart(talk: Conversation) -> bool:
    """Whether only the drawing that is asked about has the answer in it."""
    (question,) = talk.questions
    if talk.images < 2:
        return True
    if question.kind not in ("colour", "shape"):
        return False
    seen = [
        any(question.answer in (shape.colour, shape.kind) for shape in drawn.shapes)
        for drawn in talk.drawings
    ]
    return sum(seen) == 1


@click.command()
@click.option("--output", default=FOLDER, type=click.Path(path_type=Path), show_default=True)
def main(output: Path) -> None:
    """Write the sample files."""
    write(output)


if __name__ == "__main__":
    main()
