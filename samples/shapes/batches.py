"""Conversations -> arrays for one training step, all of fixed shape but for the text's length.

Pictures go through mlx-vlm's own processor. Every picture has room for 16 cells of 4 patches;
what is not used is masked. Knows nothing of weights.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from mlx_vlm.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor

from samples.shapes.draw import CELL, COLOURS, KINDS, MAX_PIXELS, Drawing, picture
from samples.shapes.model import END_TURN, IMAGE, START_TURN
from samples.shapes.questions import Conversation, conversation

CELLS = MAX_PIXELS // CELL**2
PATCHES = 4 * CELLS
PATCH_SIZE = 3 * 2 * 14 * 14
_ROUND = 16  # the text's length is a multiple of this, so that few shapes are compiled

_COLOUR_NUMBERS = {colour: number for number, colour in enumerate(COLOURS, 1)}
_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS, 1)}

Array = np.ndarray[Any, Any]


class Pictures(NamedTuple):
    """N pictures of up to P patches in M cells, padded at the end.

    patches [N, P, values], places [N, P, 2] (row, column of each patch), used [N, P].
    What lies in each cell: colours, kinds [N, M], 0 for nothing; -1 where it cannot be said.
    counts [N]: shapes less one.
    """

    patches: Array
    places: Array
    used: Array
    colours: Array
    kinds: Array
    counts: Array


class Texts(NamedTuple):
    """B conversations of up to L tokens, padded at the end, with A answer tokens each.

    tokens [B, L]; positions [3, B, L]; cells [B, L]: which cell of all N * M stands at a token,
    -1 for none; answers_at, answers [B, A]: where a token is to be foretold, and which.
    """

    tokens: Array
    positions: Array
    cells: Array
    answers_at: Array
    answers: Array


def pictures(drawings: list[Drawing], processor: Qwen2VLProcessor) -> Pictures:
    made = processor.image_processor(images=[picture(drawn) for drawn in drawings])
    rows = np.split(made["pixel_values"], np.cumsum(made["image_grid_thw"].prod(1))[:-1])
    count = len(drawings)
    filled = Pictures(
        patches=np.zeros((count, PATCHES, PATCH_SIZE), np.float32),
        places=np.zeros((count, PATCHES, 2), np.int32),
        used=np.zeros((count, PATCHES), bool),
        colours=np.full((count, CELLS), -1, np.int32),
        kinds=np.full((count, CELLS), -1, np.int32),
        counts=np.array([len(drawn.shapes) - 1 for drawn in drawings], np.int32),
    )
    for number, (drawn, patches) in enumerate(zip(drawings, rows, strict=True)):
        filled.patches[number, : len(patches)] = patches
        filled.places[number, : len(patches)] = _patch_places(*drawn.grid)
        filled.used[number, : len(patches)] = True
        if not drawn.large:
            _fill_cells(drawn, filled.colours[number], filled.kinds[number])
    return filled


def texts(talks: list[Conversation], processor: Qwen2VLProcessor, turns: int, first: int) -> Texts:
    """`first` is the number of the conversations' first picture among all of the step."""
    rows = [_tokens(talk, processor) for talk in talks]
    length = -(-max(len(row) for row in rows) // _ROUND) * _ROUND
    shape = (len(talks), length)
    made = Texts(
        tokens=np.full(shape, processor.tokenizer.pad_token_id, np.int32),
        positions=np.zeros((3, *shape), np.int32),
        cells=np.full(shape, -1, np.int32),
        answers_at=np.zeros((len(talks), 2 * turns), np.int32),
        answers=np.zeros((len(talks), 2 * turns), np.int32),
    )
    for number, (talk, row) in enumerate(zip(talks, rows, strict=True)):
        ids = np.array(row)
        grids = [drawn.grid for drawn in talk.drawings[: talk.images]]
        starts = [(first + place) * CELLS for place in range(talk.images)]
        made.tokens[number, : len(ids)] = ids
        made.positions[:, number, : len(ids)] = positions(ids == processor.image_token_id, grids)
        made.cells[number, np.flatnonzero(ids == processor.image_token_id)] = [
            start + cell
            for start, (down, across) in zip(starts, grids, strict=True)
            for cell in range(down * across)
        ]
        at = _answers_at(row, processor)
        made.answers_at[number] = at
        made.answers[number] = ids[np.array(at) + 1]
        first += talk.images
    return made


def positions(is_image: Array, grids: list[tuple[int, int]]) -> Array:
    """M-RoPE positions [3, L] of a prompt, as Qwen2-VL gives them: an image's tokens stand at its
    start, moved by row and column; the text after it goes on past the farthest."""
    parts, at, token = [], 0, 0
    for down, across in [*grids, (0, 0)]:
        start = token + int(np.argmax(is_image[token:])) if down else len(is_image)
        parts.append(np.tile(np.arange(at, at + start - token), (3, 1)))
        at += start - token
        place = np.indices((1, down, across)).reshape(3, -1) + at
        parts.append(place)
        at += max(down, across)
        token = start + down * across
    return np.concatenate(parts, axis=1)


def ahead(make: Callable[[int], Any], steps: range, depth: int = 3) -> Iterator[Any]:
    """`make(step)` for every step in order, made in another thread a few steps ahead."""
    with ThreadPoolExecutor(1) as pool:
        waiting = [pool.submit(make, step) for step in steps[:depth]]
        for step in steps:
            if step + depth < steps.stop:
                waiting.append(pool.submit(make, step + depth))
            yield waiting.pop(0).result()


def conversations(seed: str, mix: tuple[int, ...], turns: int, stray: int) -> list[Conversation]:
    """`mix[n]` new conversations on n images each."""
    rng = random.Random(seed)
    return [
        conversation(rng, images, turns=turns, stray=stray)
        for images, count in enumerate(mix)
        for _ in range(count)
    ]


def _patch_places(down: int, across: int) -> Array:
    """Row and column of each patch, in the processor's order: the four of a cell together."""
    places = np.indices((2 * down, 2 * across)).reshape(2, down, 2, across, 2)
    return places.transpose(1, 3, 2, 4, 0).reshape(-1, 2)


def _fill_cells(drawn: Drawing, colours: Array, kinds: Array) -> None:
    down, across = drawn.grid
    colours[: down * across] = kinds[: down * across] = 0
    for shape in drawn.shapes:
        cell = shape.row * across + shape.column
        colours[cell] = _COLOUR_NUMBERS[shape.colour]
        kinds[cell] = _KIND_NUMBERS[shape.kind]


def _tokens(talk: Conversation, processor: Qwen2VLProcessor) -> list[int]:
    """The whole conversation, its last answer included."""
    answer = {"role": "assistant", "content": talk.questions[-1].answer}
    messages = [*talk.messages(lambda _: {"type": "image"}), answer]
    text = processor.tokenizer.apply_chat_template(messages, tokenize=False)
    first, *others = text.split(IMAGE)
    for drawn, following in zip(talk.drawings, others, strict=False):
        down, across = drawn.grid
        first += IMAGE * (down * across) + following
    return list(processor.tokenizer.encode(first, add_special_tokens=False))


def _answers_at(row: list[int], processor: Qwen2VLProcessor) -> list[int]:
    """Where the tokens of answers, and the ends of turns after them, are to be foretold."""
    start, assistant, end = processor.tokenizer.convert_tokens_to_ids(
        [START_TURN, "assistant", END_TURN]
    )
    at: list[int] = []
    for place, pair in enumerate(itertools.pairwise(row)):
        if pair == (start, assistant):
            at += range(place + 2, row.index(end, place))
    return at
