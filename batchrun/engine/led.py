"""Rows that are led along given tokens: what they go on with, and what they want to know."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import mlx.core as mx
import numpy as np

from batchrun.engine.ballots import Group, Walk
from batchrun.engine.logprobs import log_total


@dataclass(frozen=True, slots=True)
class Told:
    """Log-probabilities of one step: `values` (rows, width) of all tokens asked for, in the order
    of `groups`, for the rows at `places` in the batch."""

    places: list[int]
    groups: list[tuple[Group, ...]]
    values: mx.array

    def read(self) -> dict[int, list[float]]:
        """By place, the log-probability of each group."""
        values = np.array(self.values, dtype=np.float64)
        return {
            place: _summed(groups, row)
            for place, groups, row in zip(self.places, self.groups, values, strict=True)
        }


class Led:
    """The led rows of a batch: their places, walks, and steps taken so far."""

    def __init__(self, rows: list[tuple[int, Walk, int]]):
        self._places = [place for place, _, _ in rows]
        self._index = mx.array(self._places)
        self._walks = [walk for _, walk, _ in rows]
        self._steps = [step for _, _, step in rows]

    def replace(self, tokens: mx.array) -> mx.array:
        """`tokens` (rows,) with those that led rows go on with."""
        steps = zip(self._walks, self._steps, strict=True)
        tokens[self._index] = mx.array([walk.token_at(step) for walk, step in steps], mx.int32)
        return tokens

    def ask(self, logits: mx.array) -> Told:
        """What led rows want to know of this step's `logits` (rows, vocabulary), float32."""
        groups = [w.asked_at(step) for w, step in zip(self._walks, self._steps, strict=True)]
        self._steps = [step + 1 for step in self._steps]
        ids = [[token for group in asked for token in group] for asked in groups]
        width = max(map(len, ids))
        padded = mx.array([row + [0] * (width - len(row)) for row in ids], mx.int32)
        rows = logits[self._index]
        values = mx.take_along_axis(rows, padded, axis=-1) if width else mx.zeros((len(ids), 0))
        return Told(self._places, groups, values - log_total(rows))


def _summed(groups: tuple[Group, ...], values: np.ndarray) -> list[float]:
    """The log-probability that it is any token of a group, for each."""
    if not groups:
        return []
    *ends, width = accumulate(map(len, groups))
    return [float(np.logaddexp.reduce(part)) for part in np.split(values[:width], ends)]
