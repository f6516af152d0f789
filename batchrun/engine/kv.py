"""The caches of a batch: one object per layer, one row per sequence.

Plain KV layers are `PrefillKV` and then `RingKV`, ours: rows come and go without the others being
copied, and a prefix that rows share exists once. Every other kind of layer (sliding window,
recurrent, nested) keeps mlx-lm's own batch cache with its merge/extend/filter/prepare/finalize
protocol. A model whose caches do not know how to hold several rows runs one row at a time on them
as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from batchrun.engine.budget import is_worth_sharing
from batchrun.engine.joining import Joining
from batchrun.engine.plainkv import PrefillKV, PrefixKV, PrefixState
from batchrun.engine.ring import Ring
from batchrun.engine.ringkv import RingKV

if TYPE_CHECKING:
    from batchrun.models.loaded import Given


class Model(Protocol):
    """What the engine needs of a model. `takes_positions`: it has to be told each token's
    positions, as they do not follow from the tokens."""

    @property
    def takes_positions(self) -> bool: ...

    def __call__(self, tokens: mx.array, cache: list[Any], given: Given | None = None) -> mx.array:
        """Logits (rows, tokens, vocabulary) after `tokens` (rows, tokens), which join `cache`."""

    def make_cache(self) -> list[Any]:
        """Fresh caches of one sequence, one per layer."""

    def modules(self) -> Iterable[nn.Module]:
        """Every part of the model that is a module."""


@dataclass(frozen=True, slots=True)
class CacheTraits:
    """`batched`: several rows can run at once. `shares`: rows can share a plain layer's prefix,
    instead of having a copy each. `mixes`: rows after different prefixes can be prefilled together.
    In decoding, plain layers keep `kv_bits` bits a number, or, if None, numbers as they are."""

    batched: bool = True
    shares: bool = True
    mixes: bool = True
    kv_bits: int | None = None


def can_batch(caches: list[Any]) -> bool:
    """Whether every layer's cache knows how to hold several rows."""
    return all(hasattr(cache, "merge") for cache in caches)


def is_plain(cache: Any) -> bool:
    return type(cache) is KVCache


class PrefixCaches:
    """Caches of one sequence that is to become a shared prefix, after `parent`, if any."""

    def __init__(self, model: Model, parent: PrefixState | None, traits: CacheTraits):
        self.layers = model.make_cache()
        for index, cache in enumerate(self.layers):
            before = parent.layers[index] if parent else None
            if traits.batched and is_plain(cache):
                self.layers[index] = PrefillKV([(before, 1)])
                self.layers[index].repeat_prefix(1)
            elif before is not None:
                self.layers[index] = copy.deepcopy(before)

    def evaluate(self) -> None:
        mx.eval([layer.state for layer in self.layers])

    def state(self, length: int) -> PrefixState:
        return PrefixState(length, [_frozen(layer) for layer in self.layers])


def _frozen(layer: Any) -> Any:
    if not isinstance(layer, PrefillKV):
        return layer
    if layer.keys is None or layer.values is None:
        return None
    return PrefixKV(layer.keys, layer.values)


class PrefillCaches:
    """Caches of prompts that are prefilled together, each after its entry of `prefixes`, padded on
    the right to `columns`. `lengths` are tokens per row after the prefix. Prefixes may differ where
    rows can share them in batches of any prefixes, as `traits` say."""

    def __init__(
        self,
        model: Model,
        lengths: list[int],
        prefixes: Many[PrefixState | None],
        traits: CacheTraits,
    ):
        self.lengths = lengths
        # Rows that are padded never go in as one column: mlx-lm's recurrent and sliding-window
        # layers take that for decoding.
        is_padded = min(lengths) < max(lengths)
        self.columns = max(2, *lengths) if is_padded else lengths[0]
        self.prefixes = prefixes
        self.layers = model.make_cache()
        self.traits = traits
        for index, cache in enumerate(self.layers):
            of_rows = [state.layers[index] if state else None for state in prefixes]
            self.layers[index] = self._widen(cache, of_rows)

    def _widen(self, cache: Any, prefixes: Many[Any]) -> Any:
        if not self.traits.batched:
            return cache if prefixes[0] is None else copy.deepcopy(prefixes[0])
        if is_plain(cache):
            return self._plain(prefixes)
        batch = cache.merge([prefix or cache for prefix in prefixes])
        padding = [self.columns - length for length in self.lengths]
        if any(padding):
            batch.prepare(lengths=self.lengths, right_padding=padding)
        return batch

    def _plain(self, prefixes: Many[PrefixKV | None]) -> PrefillKV:
        runs = [list(run) for _, run in groupby(prefixes, key=id)]
        layer = PrefillKV([(run[0], len(run)) for run in runs])
        if not self.traits.shares:
            layer.repeat_prefix(len(self.lengths))
        return layer

    def joining(
        self, picks: Many[int], lengths: Many[int], prefixes: Many[PrefixState | None]
    ) -> Joining:
        """The rows `picks` as they join a batch, of so many tokens each, with copies of their own
        of `prefixes`."""
        # Where no layer shares, these are already among the rows' own tokens.
        copied = prefixes if self.traits.shares else [None] * len(picks)
        plain = (layer for layer in self.layers if isinstance(layer, PrefillKV))
        columns = max((layer.own_length for layer in plain), default=0)
        return Joining(picks, lengths, copied, num_rows=len(self.lengths), columns=columns)

    def finalize(self) -> None:
        """To be called once every prompt is in."""
        if self.traits.batched:
            for layer in self.layers:
                if not isinstance(layer, PrefillKV):
                    layer.finalize()
        self.evaluate()

    def evaluate(self) -> None:
        mx.eval([layer.state for layer in self.layers])


class DecodeCaches:
    """The caches of the rows that are being decoded, in batch order. With `shares_short` they share
    also prefixes that are too short for that to save time."""

    def __init__(self, *, max_rows: int, traits: CacheTraits, shares_short: bool = False):
        self.layers: list[Any] = []
        self.ring = Ring(max_rows, is_attended=traits.shares)
        self._traits = traits
        self._shares_short = shares_short

    @property
    def nbytes(self) -> int:
        """Without shared prefixes."""
        return sum(layer.nbytes for layer in self.layers)

    def extend(self, new: PrefillCaches, picks: Many[int]) -> None:
        """Append a row for each of `picks`, a row number of `new`; one may be picked again."""
        if not self._traits.batched:
            self.layers = new.layers
            return
        first_row = self.ring.rows
        prefixes = [new.prefixes[pick] for pick in picks]
        shared = [self._shared(prefix) for prefix in prefixes]
        copied = [None if state else prefix for prefix, state in zip(prefixes, shared, strict=True)]
        lengths = [
            new.lengths[pick] + (prefix.length if prefix else 0)
            for pick, prefix in zip(picks, copied, strict=True)
        ]
        self._fit(max([*self.ring.lengths, *lengths]) + 1)
        self.ring.append(lengths, [state and (state.packed or state) for state in shared])
        if not self.layers:
            self.layers = [
                RingKV(self.ring, index, self._traits.kv_bits)
                if isinstance(layer, PrefillKV)
                else None
                for index, layer in enumerate(new.layers)
            ]
        joining = new.joining(picks, lengths, copied)
        for index, (layer, other) in enumerate(zip(self.layers, new.layers, strict=True)):
            if isinstance(layer, RingKV):
                if tokens := joining.gather(index, other):
                    layer.extend(first_row, *tokens)
                continue
            if list(picks) != list(range(len(new.lengths))):
                other.filter(mx.array(picks))
            if layer is None:
                self.layers[index] = other
            else:
                layer.extend(other)

    def filter(self, keep: Many[int]) -> None:
        """Keep just these rows, in this order, in which holes are filled from the end."""
        self.ring.filter(keep)
        if not keep:
            self.layers = []
            return
        rows = mx.array(keep)
        for layer in self.layers:
            layer.filter(keep if isinstance(layer, RingKV) else rows)

    def retire(self, row: int) -> None:
        """A row has ended; until `filter` it stays in the batch but need not be kept."""
        if self._traits.batched:
            self.ring.retire(row)

    def _shared(self, prefix: PrefixState | None) -> PrefixState | None:
        """`prefix` if its rows share one copy of it."""
        if prefix is None or not self._traits.shares:
            return None
        is_worth_it = self._shares_short or is_worth_sharing(prefix.length)
        return prefix if is_worth_it else None

    def begin_step(self) -> None:
        """Before the model takes one more token of every row."""
        if self._traits.batched:
            self._fit(max(self.ring.lengths) + 1)

    def end_step(self) -> None:
        """After the model has taken it."""
        if self._traits.batched:
            self.ring.advance()

    def _fit(self, length: int) -> None:
        change = self.ring.fit(length)
        if change is None:
            return
        for layer in self.layers:
            if isinstance(layer, RingKV):
                layer.relayout(change)
