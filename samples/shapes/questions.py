"""Questions about drawings, whose answers are right by construction, and conversations of them.

Answers are single short words. Knows nothing of pixels or models.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samples.shapes.draw import COLOURS, KINDS, Drawing, Shape, drawing

NUMBERS = ("one", "two", "three", "four", "five")
PLACES = ("first", "second", "third")
SYSTEM = "Answer with one word."


@dataclass(frozen=True, slots=True)
class Question:
    """`kind` is "colour", "shape", "count" or "exists"."""

    kind: str
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """One or more questions on the same drawings, which are shown or, in `words`, described."""

    drawings: tuple[Drawing, ...]
    questions: tuple[Question, ...]
    words: bool = False
    text_first: bool = False
    system: bool = False

    @property
    def images(self) -> int:
        return 0 if self.words else len(self.drawings)

    def messages(self, picture: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        """The chat up to the last question; `picture` makes the part of the drawing of a number."""
        first, *others = self.questions
        parts = [picture(number) for number in range(self.images)]
        text = {"type": "text", "text": self._opening(first)}
        turns = [*parts, text] if not self.text_first else [text, *parts]
        messages: list[dict[str, Any]] = [{"role": "user", "content": turns}]
        for earlier, question in zip(self.questions, others, strict=False):
            messages.append({"role": "assistant", "content": earlier.answer})
            messages.append({"role": "user", "content": question.text})
        return [{"role": "system", "content": SYSTEM}, *messages] if self.system else messages

    def _opening(self, question: Question) -> str:
        if not self.words:
            return question.text
        return f"{described(self.drawings[0])} {question.text}"


def conversation(
    rng: random.Random, images: int, *, turns: int = 1, stray: int = 24
) -> Conversation:
    """A new conversation on this many images; on none, about one that is told in words."""
    drawings = tuple(drawing(rng, stray=stray) for _ in range(max(images, 1)))
    return Conversation(
        drawings,
        tuple(_question_on(drawings, rng) for _ in range(turns)),
        words=images == 0,
        text_first=rng.random() < 1 / 4,
        system=rng.random() < 1 / 4,
    )


def described(drawn: Drawing) -> str:
    names = [_named(shape.colour, shape.kind) for shape in drawn.shapes]
    *most, last = names
    return f"There is {', '.join(most)}{' and ' if most else ''}{last}."


def ask(drawn: Drawing, rng: random.Random) -> Question:
    """A question that this drawing answers without doubt."""
    make = rng.choice([_colour, _colour, _shape, _shape, _count, _exists, _exists])
    return make(drawn, rng) or _exists(drawn, rng)


def _question_on(drawings: tuple[Drawing, ...], rng: random.Random) -> Question:
    place = rng.randrange(len(drawings))
    question = ask(drawings[place], rng)
    where = "" if len(drawings) == 1 else f"in the {PLACES[place]} image, "
    text = where + question.text
    if rng.random() < 5 / 6:  # some people begin with a small letter
        text = text[0].upper() + text[1:]
    return Question(question.kind, text, question.answer)


def _colour(drawn: Drawing, rng: random.Random) -> Question | None:
    single = _single(drawn, lambda shape: shape.kind)
    if not single:
        return None
    shape = rng.choice(single)
    text = f"{rng.choice(['which', 'what'])} colour is the {shape.kind}?"
    return Question("colour", text, shape.colour)


def _shape(drawn: Drawing, rng: random.Random) -> Question | None:
    single = _single(drawn, lambda shape: shape.colour)
    if not single:
        return None
    shape = rng.choice(single)
    text = f"{rng.choice(['which', 'what'])} shape is {shape.colour}?"
    return Question("shape", text, shape.kind)


def _count(drawn: Drawing, rng: random.Random) -> Question:
    text = rng.choice(["how many shapes are there?", "how many shapes do you see?"])
    return Question("count", text, NUMBERS[len(drawn.shapes) - 1])


def _exists(drawn: Drawing, rng: random.Random) -> Question:
    there = {(shape.colour, shape.kind) for shape in drawn.shapes}
    # What is asked for in vain has, half the time, a colour and a kind that are there, apart.
    colours, kinds = zip(*there, strict=True)
    near = {(colour, kind) for colour in colours for kind in kinds} - there
    far = {(colour, kind) for colour in COLOURS for kind in KINDS} - there
    yes = rng.random() < 0.5
    pairs = there if yes else near if near and rng.random() < 0.5 else far
    colour, kind = rng.choice(sorted(pairs))
    return Question("exists", f"is there {_named(colour, kind)}?", "yes" if yes else "no")


def _named(colour: str, kind: str) -> str:
    return f"{'an' if colour[0] in 'aeiou' else 'a'} {colour} {kind}"


def _single(drawn: Drawing, look: Callable[[Shape], str]) -> list[Shape]:
    looks = [look(shape) for shape in drawn.shapes]
    return [shape for shape in drawn.shapes if looks.count(look(shape)) == 1]
