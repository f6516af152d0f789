"""Rows that ask about new drawings of many sizes: the samples' drawings and questions, with numbers
that neither training nor the samples used.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from samples.shapes.draw import drawing, picture  # noqa: E402
from samples.shapes.questions import ask  # noqa: E402

MODEL = ROOT / "samples/shapes-vlm"
MAX_TOKENS = 4


def image_rows(folder: Path, images: int, questions: int = 1) -> Iterator[dict[str, Any]]:
    """`questions` different rows on each of `images` drawings, all rows on one after another. The
    drawings are written into `folder`, as PNG files; `expected` is the answer that is right."""
    for number in range(images):
        rng = random.Random(f"benchmark {number}")
        drawn = drawing(rng)
        name = f"{number:05}.png"
        picture(drawn).save(folder / name)
        asked: dict[str, str] = {}
        while len(asked) < questions:
            question = ask(drawn, rng)
            asked[question.text.capitalize()] = question.answer
        for place, (text, answer) in enumerate(asked.items()):
            yield {
                "custom_id": f"{number:05}-{place}",
                "messages": [{"role": "user", "content": _parts(name, text)}],
                "max_tokens": MAX_TOKENS,
                "temperature": 0,
                "expected": answer,
            }


def _parts(image: str, text: str) -> list[dict[str, Any]]:
    return [
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "text", "text": text},
    ]
