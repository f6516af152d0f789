"""What a model is fed for prompts: their tokens, and beside these what tokens do not say, the
embeddings of images and the positions of M-RoPE (Qwen2-VL, arXiv 2409.12191)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from batchrun.engine.features import FeatureCache, seeing
from batchrun.engine.kv import Model
from batchrun.models.loaded import Given
from batchrun.records import Media, MediaSpan, Prompt

if TYPE_CHECKING:
    from batchrun.models.loaded import Features


@dataclass(frozen=True, slots=True)
class Chunk:
    """`tokens` (rows, width) int32, padded on the right with 0, of which `num_tokens` are real."""

    tokens: mx.array
    given: Given | None
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of a medium that lies in a chunk: its tokens `first` up to `last`, for the places
    from `place` on of row `row`."""

    row: int
    place: int
    first: int
    last: int
    features: Features


class PromptInputs:
    """The tokens of each of `prompts` from its entry of `starts` on, as many as that of `lengths`
    says. Media before these are not looked at, those within are encoded at once."""

    def __init__(
        self,
        model: Model,
        features: FeatureCache,
        prompts: list[Prompt],
        starts: list[int],
        lengths: list[int],
    ):
        self._model = model
        self._starts = starts
        self._token_ids = [
            prompt.token_ids[start : start + length]
            for prompt, start, length in zip(prompts, starts, lengths, strict=True)
        ]
        self._spans = [
            [span for span in prompt.media if start < span.end and span.start < start + length]
            for prompt, start, length in zip(prompts, starts, lengths, strict=True)
        ]
        for prompt in prompts:
            _check_ends_with_text(prompt)
        self._features = features.of(_media(self._spans))
        self._positions = [self._all_positions(prompt) for prompt in prompts]

    @property
    def last_positions(self) -> list[int]:
        """Position of each prompt's last token."""
        return [int(positions[0, -1]) for positions in self._positions]

    def chunk(self, begin: int, end: int) -> Chunk:
        """Columns `begin` up to `end`, counted from each row's start."""
        tokens = np.zeros((len(self._token_ids), end - begin), dtype=np.int32)
        num_tokens = 0
        for row, token_ids in enumerate(self._token_ids):
            part = token_ids[begin:end]
            tokens[row, : len(part)] = part
            num_tokens += len(part)
        fed = mx.array(tokens)
        return Chunk(fed, self._given(fed, begin, end), num_tokens)

    def _given(self, tokens: mx.array, begin: int, end: int) -> Given | None:
        positions = self._chunk_positions(begin, end) if self._model.takes_positions else None
        pieces = [
            piece for row in range(len(self._spans)) for piece in self._pieces(row, begin, end)
        ]
        if not pieces:
            return None if positions is None else Given(positions=positions)
        embeds = seeing(self._model).embed(tokens)
        for piece in pieces:
            places = slice(piece.place, piece.place + piece.last - piece.first)
            part = piece.features.embeds[piece.first : piece.last]
            embeds[piece.row, places] = part.astype(embeds.dtype)
        return Given(embeds, positions, *_deepstack(pieces, tokens.shape))

    def _pieces(self, row: int, begin: int, end: int) -> list[_Piece]:
        pieces = []
        for span in self._spans[row]:
            at = span.start - self._starts[row]
            first, last = max(begin - at, 0), min(end - at, span.end - span.start)
            if first < last:
                features = self._features[span.media.digest]
                pieces.append(_Piece(row, at + first - begin, first, last, features))
        return pieces

    def _all_positions(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        length = len(prompt.token_ids)
        if self._model.takes_positions and prompt.media:
            return seeing(self._model).positions(prompt.token_ids, prompt.media)
        return np.broadcast_to(np.arange(length, dtype=np.int32), (3, length))

    def _chunk_positions(self, begin: int, end: int) -> mx.array:
        positions = np.zeros((3, len(self._positions), end - begin), dtype=np.int32)
        for row, whole in enumerate(self._positions):
            start = self._starts[row]
            part = whole[:, start + begin : start + end]
            positions[:, row, : part.shape[1]] = part
        return mx.array(positions)


def text_positions(starts: list[int], num_tokens: int) -> mx.array:
    """M-RoPE positions (3, rows, num_tokens) of text from position `starts[row]` on."""
    row = np.array(starts, dtype=np.int32)[:, None] + np.arange(num_tokens, dtype=np.int32)
    return mx.array(np.broadcast_to(row, (3, *row.shape)))


def _check_ends_with_text(prompt: Prompt) -> None:
    # Its last token is the first input of decoding, which is a token and no more.
    if prompt.media and prompt.media[-1].end == len(prompt.token_ids):
        raise ValueError("the prompt ends with an image or video; it must end with text")


def _media(spans: list[list[MediaSpan]]) -> list[Media]:
    return [span.media for row in spans for span in row]


def _deepstack(
    pieces: list[_Piece], shape: tuple[int, ...]
) -> tuple[mx.array | None, mx.array | None]:
    """Which tokens of a chunk get what, where the model has such features."""
    mask = np.zeros(shape, dtype=np.bool_)
    parts = []
    for piece in pieces:
        if piece.features.deepstack is None:
            return None, None
        seen = piece.features.is_visual
        mask[piece.row, piece.place : piece.place + piece.last - piece.first] = seen[
            piece.first : piece.last
        ]
        before, until = int(seen[: piece.first].sum()), int(seen[: piece.last].sum())
        parts.append(piece.features.deepstack[:, before:until])
    return mx.array(mask), mx.concatenate(parts, axis=1)
