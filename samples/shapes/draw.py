"""Drawings of coloured shapes, each decided by its seed.

A drawing has any size; its shapes lie one to a cell, in the cells that a Qwen2-VL processor cuts
the picture into (28 pixels of the resized picture). Knows nothing of questions or models.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image, ImageDraw

RGB = tuple[int, int, int]

COLOURS: dict[str, RGB] = {
    "red": (214, 40, 40),
    "orange": (244, 136, 30),
    "yellow": (242, 216, 60),
    "green": (44, 160, 70),
    "blue": (40, 90, 210),
    "purple": (142, 60, 170),
    "black": (26, 26, 26),
}
KINDS = ("circle", "square", "triangle", "star", "cross")
MOST_SHAPES = 5

CELL = 28  # pixels on a side: two by two patches of 14, merged into one token
MIN_PIXELS, MAX_PIXELS = 56 * 56, 112 * 112
_SMALL, _LARGE = (50, 118), (100, 260)  # ranges of a drawing's sides in pixels
_MOST_SQUEEZED = 2.0  # longer side over shorter side


@dataclass(frozen=True, slots=True)
class Shape:
    """`x`, `y`, `radius` in pixels, `turn` in radians. `row`, `column`: the cell it lies in."""

    kind: str
    colour: str
    rgb: RGB
    x: float
    y: float
    radius: float
    turn: float
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """`large` is one big shape over several cells instead of small ones, each within its own."""

    width: int
    height: int
    background: RGB
    shapes: tuple[Shape, ...]
    large: bool

    @property
    def grid(self) -> tuple[int, int]:
        return grid(self.width, self.height)


def grid(width: int, height: int) -> tuple[int, int]:
    """Rows and columns of cells that the processor makes of a picture of this size in pixels."""
    rows, columns = round(height / CELL), round(width / CELL)
    if rows * columns * CELL**2 > MAX_PIXELS:
        over = math.sqrt(height * width / MAX_PIXELS)
        return math.floor(height / over / CELL), math.floor(width / over / CELL)
    if rows * columns * CELL**2 < MIN_PIXELS:
        under = math.sqrt(MIN_PIXELS / (height * width))
        return math.ceil(height * under / CELL), math.ceil(width * under / CELL)
    return rows, columns


def drawing(rng: random.Random, *, stray: int = 24) -> Drawing:
    """A new drawing; each channel of a colour is up to `stray` of 255 away from the palette's."""
    width, height = _size(rng)
    background = _strayed((lightness := rng.randint(200, 245),) * 3, 255 - lightness, rng)
    large = rng.random() < 1 / 8
    place = _large if large else _small
    return Drawing(width, height, background, tuple(place(rng, width, height, stray)), large)


def picture(drawn: Drawing) -> Image.Image:
    image = Image.new("RGB", (drawn.width, drawn.height), drawn.background)
    canvas = ImageDraw.Draw(image)
    for shape in drawn.shapes:
        if shape.kind == "circle":
            canvas.circle((shape.x, shape.y), shape.radius, fill=shape.rgb)
        else:
            canvas.polygon(_corners(shape), fill=shape.rgb)
    return image


def _size(rng: random.Random) -> tuple[int, int]:
    sides = _SMALL if rng.random() < 0.6 else _LARGE
    while True:
        width, height = rng.randint(*sides), rng.randint(*sides)
        if max(width, height) <= _MOST_SQUEEZED * min(width, height):
            return width, height


def _small(rng: random.Random, width: int, height: int, stray: int) -> Iterator[Shape]:
    rows, columns = grid(width, height)
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    looks = [(kind, colour) for kind in KINDS for colour in COLOURS]
    count = rng.randint(1, min(MOST_SHAPES, len(cells)))
    cell_width, cell_height = width / columns, height / rows
    for (row, column), (kind, colour) in zip(
        rng.sample(cells, count), rng.sample(looks, count), strict=True
    ):
        radius = min(cell_width, cell_height) * rng.uniform(0.32, 0.46)
        yield Shape(
            kind,
            colour,
            _strayed(COLOURS[colour], stray, rng),
            x=cell_width * column + _within(rng, radius, cell_width),
            y=cell_height * row + _within(rng, radius, cell_height),
            radius=radius,
            turn=rng.uniform(-0.2, 0.2),
            row=row,
            column=column,
        )


def _large(rng: random.Random, width: int, height: int, stray: int) -> Iterator[Shape]:
    radius = min(width, height) * rng.uniform(0.25, 0.46)
    x, y = _within(rng, radius, width), _within(rng, radius, height)
    rows, columns = grid(width, height)
    colour = rng.choice(list(COLOURS))
    yield Shape(
        rng.choice(KINDS),
        colour,
        _strayed(COLOURS[colour], stray, rng),
        x=x,
        y=y,
        radius=radius,
        turn=rng.uniform(-0.2, 0.2),
        row=int(y * rows / height),
        column=int(x * columns / width),
    )


def _within(rng: random.Random, radius: float, side: float) -> float:
    """A place along a side where a shape lies wholly within it."""
    return rng.uniform(radius, side - radius)


def _strayed(colour: RGB, most: int, rng: random.Random) -> RGB:
    red, green, blue = (min(255, max(0, part + rng.randint(-most, most))) for part in colour)
    return red, green, blue


def _corners(shape: Shape) -> list[tuple[float, float]]:
    return [
        (
            shape.x + shape.radius * (x * math.cos(shape.turn) - y * math.sin(shape.turn)),
            shape.y + shape.radius * (x * math.sin(shape.turn) + y * math.cos(shape.turn)),
        )
        for x, y in _OUTLINES[shape.kind]
    ]


def _ring(count: int, start: float, radius: float = 1.0) -> list[tuple[float, float]]:
    turns = [math.pi * (start + 2 * number / count) for number in range(count)]
    return [(radius * math.cos(turn), radius * math.sin(turn)) for turn in turns]


def _star() -> list[tuple[float, float]]:
    tips, notches = _ring(5, -0.5), _ring(5, -0.3, 0.42)
    return [point for pair in zip(tips, notches, strict=True) for point in pair]


_ARM = 0.3
_OUTLINES = {
    "square": _ring(4, 0.25),
    "triangle": _ring(3, -0.5),
    "star": _star(),
    "cross": [
        *((-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM)),
        *((_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM)),
    ],
}
