"""The caches of a batch: one object per layer, one row per sequence.

Plain KV layers decode in `RingKV`, ours: rows come and go without the others being copied. Every other
kind of layer (sliding window, recurrent, nested) keeps mlx-lm's own batch cache with its
merge/extend/filter/prepare/finalize protocol. A model whose caches do not know how to hold
several rows runs one row at a time on them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from batchrun.engine.ring import Ring, RingKV


class Model(Protocol):
    """What the engine needs of a model."""

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Logits (rows, tokens, vocabulary) after `tokens` (rows, tokens), which join `cache`."""

    def make_cache(self) -> list[Any]:
        """Fresh caches of one sequence, one per layer."""


def can_batch(caches: list[Any]) -> bool:
    """Whether every layer's cache knows how to hold several rows."""
    return all(hasattr(cache, "merge") for cache in caches)


def _is_plain(cache: Any) -> bool:
    return type(cache) is KVCache


class PrefillCaches:
    """Caches of prompts that are prefilled together, padded on the right.

    A plain layer's padding stays where it is: causality hides it from the real tokens, and
    `DecodeCaches.extend` leaves it behind. Other layers are told the lengths.
    """

    def __init__(self, model: Model, lengths: list[int], *, batched: bool):
        self.lengths = lengths
        self.layers = model.make_cache()
        if batched:
            self._widen()

    def _widen(self) -> None:
        padding = [max(self.lengths) - length for length in self.lengths]
        for index, cache in enumerate(self.layers):
            if not _is_plain(cache):
                self.layers[index] = cache.merge([cache] * len(self.lengths))
                if any(padding):
                    self.layers[index].prepare(lengths=self.lengths, right_padding=padding)

    def finalize(self, *, batched: bool) -> None:
        """To be called once every prompt is in."""
        if batched:
            for layer in self.layers:
                if not _is_plain(layer):
                    layer.finalize()
        self.evaluate()

    def evaluate(self) -> None:
        mx.eval([layer.state for layer in self.layers])


class DecodeCaches:
    """The caches of the rows that are being decoded, in batch order."""

    def __init__(self, *, max_rows: int, batched: bool):
        self.layers: list[Any] = []
        self._ring = Ring(max_rows)
        self._batched = batched

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def extend(self, new: PrefillCaches, picks: Many[int]) -> None:
        """Append a row for each of `picks`, a row number of `new`; one may be picked again."""
        if not self._batched:
            self.layers = new.layers
            return
        first_row = self._ring.rows
        lengths = [new.lengths[pick] for pick in picks]
        self._fit(max([*self._ring.lengths, *lengths]) + 1)
        self._ring.append(lengths)
        if not self.layers:
            self.layers = [RingKV(self._ring) if _is_plain(c) else None for c in new.layers]
        for index, (layer, other) in enumerate(zip(self.layers, new.layers, strict=True)):
            if isinstance(layer, RingKV):
                if other.keys is not None:
                    layer.extend(first_row, other.keys, other.values, picks)
                continue
            if list(picks) != list(range(len(new.lengths))):
                other.filter(mx.array(picks))
            if layer is None:
                self.layers[index] = other
            else:
                layer.extend(other)

    def filter(self, keep: Many[int]) -> None:
        """Keep just these rows, in this order, in which holes are filled from the end."""
        self._ring.filter(keep)
        if not keep:
            self.layers = []
            return
        rows = mx.array(keep)
        for layer in self.layers:
            layer.filter(keep if isinstance(layer, RingKV) else rows)

    def retire(self, row: int) -> None:
        """A row has ended; until `filter` it stays in the batch but need not be kept."""
        if self._batched:
            self._ring.retire(row)

    def begin_step(self) -> None:
        """Before the model takes one more token of every row."""
        if self._batched:
            self._fit(max(self._ring.lengths) + 1)

    def end_step(self) -> None:
        """After the model has taken it."""
        if self._batched:
            self._ring.advance()

    def _fit(self, length: int) -> None:
        change = self._ring.fit(length)
        if change is None:
            return
        for layer in self.layers:
            if isinstance(layer, RingKV):
                layer.relayout(change)
