"""Shared prefixes: each is prefilled once, up to exactly where it ends, and the caches of that
moment serve every prompt that begins so, whatever kind of layers a model has. What an earlier run
left on disk is not computed at all.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from mlx_lm.models.cache import KVCache

from batchrun.engine.features import FeatureCache
from batchrun.engine.inputs import PromptInputs
from batchrun.engine.kv import CacheTraits, Model, is_plain
from batchrun.engine.plainkv import PrefixKV, PrefixState
from batchrun.engine.prefixing import Computed, PrefixJob, compute_together
from batchrun.engine.row import Sequence
from batchrun.engine.stats import EngineStats
from batchrun.records import Prefix, Prompt

# Prefixes come depth-first, so few are ever needed again: the ancestors of the latest.
KEPT = 8

# Bytes a second that a stored prefix can be counted on to be read and checked with.
READ_RATE = 5e8


class Found(Protocol):
    """A stored prefix: how many of the tokens asked for it has, and what reading it costs and
    saves."""

    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def seconds_saved(self) -> float: ...


class Store(Protocol):
    """Prefixes kept between runs, as mlx-lm's caches of one sequence."""

    def find(self, token_ids: list[int]) -> Any: ...
    def load(self, found: Any) -> list[Any] | None: ...
    def save(self, token_ids: list[int], caches: list[Any], seconds: float) -> None: ...


class PrefixPool:
    """The prefixes that are kept in memory because prompts still to come may need them, in
    front of `store`, where they outlast the run."""

    def __init__(
        self,
        model: Model,
        features: FeatureCache,
        traits: CacheTraits,
        store: Store | None,
        stats: EngineStats,
    ) -> None:
        self._model = model
        self._features = features
        self._traits = traits
        self._store = store
        self._stats = stats
        self._kept: OrderedDict[bytes, Computed] = OrderedDict()
        self._is_plain = traits.mixes and all(map(is_plain, model.make_cache()))

    @property
    def states(self) -> list[PrefixState]:
        whole = [done.state for done in self._kept.values()]
        return whole + [state.packed for state in whole if state.packed]

    def get(self, prefix: Prefix | None) -> PrefixState | None:
        kept = self._kept.get(_key(prefix))
        if kept is None:
            return None
        self._kept.move_to_end(_key(prefix))
        return kept.state

    def missing(self, prefix: Prefix | None) -> list[Prefix]:
        """`prefix` and those of its ancestors that have to be computed before it, shortest first;
        none where it is stored whole."""
        chain: list[Prefix] = []
        while prefix is not None and self.get(prefix) is None:
            chain.insert(0, prefix)
            found = self._find(prefix.token_ids)
            if found is not None and found.length == len(prefix.token_ids):
                break
            prefix = prefix.parent
        return chain

    def begin(self, prefix: Prefix, prompt: Prompt) -> PrefixJob:
        """Start on a prefix, with which `prompt` begins, from the longest part of it that is at
        hand."""
        base, seconds, num_read = self.get(prefix.parent), 0.0, 0
        if base is not None:
            seconds = self._kept[_key(prefix.parent)].seconds
        found = self._find(prefix.token_ids)
        num_kept = base.length if base else 0
        if found is not None and found.length > num_kept:
            loaded = self._load(found, num_kept)
            if loaded is not None:
                num_read = loaded.length - num_kept
                base, seconds = loaded, found.seconds_saved
        start = base.length if base else 0
        length = len(prefix.token_ids) - start
        inputs = PromptInputs(self._model, self._features, [prompt], [start], [length])
        return PrefixJob(self._model, prefix, inputs, base, self._traits, seconds, num_read)

    def compute_together(
        self, wanted: Iterable[Sequence], max_tokens: int
    ) -> list[tuple[Sequence, Computed]]:
        """Compute the prefixes of the first of `wanted` and of those after it that can go in one
        pass of `max_tokens`, padding included; none where that is not for more than one."""
        members = self._siblings(wanted, max_tokens) if self._is_plain else []
        if len(members) < 2:
            return []
        pairs = [(prefix, sequence.prompt) for sequence, prefix in members]
        above = self._kept.get(_key(pairs[0][0].parent))
        base, spent = (above.state, above.seconds) if above else (None, 0.0)
        computed = compute_together(self._model, self._features, self._traits, base, pairs)
        done = [self.keep(replace(one, seconds=spent + one.seconds)) for one in computed]
        return [(sequence, one) for (sequence, _), one in zip(members, done, strict=True)]

    def _siblings(
        self, wanted: Iterable[Sequence], max_tokens: int
    ) -> list[tuple[Sequence, Prefix]]:
        """The first of `wanted` and those after it, as far as their prefixes have all to be
        computed from where the same one ends, in one pass."""
        members: list[tuple[Sequence, Prefix]] = []
        longest, above = 0, None
        for sequence in wanted:
            prefix = sequence.prompt.prefix
            if prefix is None or not self._only_lacks(prefix):
                break
            if members and self.get(prefix.parent) is not above:
                break
            above = self.get(prefix.parent)
            own = len(prefix.token_ids) - (above.length if above else 0)
            longest = max(longest, own)
            if longest * (len(members) + 1) > max_tokens:
                break
            members.append((sequence, prefix))
        return members

    def _only_lacks(self, prefix: Prefix) -> bool:
        """Whether it has to be computed, and nothing that it goes on from, nor is any of it
        stored."""
        return self.missing(prefix) == [prefix] and self._find(prefix.token_ids) is None

    def keep(self, done: Computed) -> Computed:
        """Take in a finished prefix, and store it if any of it had to be computed. Returns it as it
        is kept."""
        if self._traits.kv_bits and self._traits.shares:
            done = replace(done, state=done.state.with_packed(self._traits.kv_bits))
        self._kept[_key(done.prefix)] = done
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        if self._store is not None and done.num_fed:
            caches = [_to_mlx_lm(layer) for layer in done.state.layers]
            self._store.save(done.prefix.token_ids, caches, done.seconds)
        return done

    def known_part(self, token_ids: list[int]) -> int:
        """How many of `token_ids` are a prefix kept here, or stored; what is computed as quickly
        as it is read does not count."""
        prefixes = [done.prefix.token_ids for done in self._kept.values()]
        kept = [len(ids) for ids in prefixes if token_ids[: len(ids)] == ids]
        found = self._find(token_ids)
        if found is not None and found.seconds_saved > found.nbytes / READ_RATE:
            kept.append(found.length)
        return max(kept, default=0)

    def shrink(self, needed: Prefix | None) -> bool:
        """Let go of all that `needed` does not begin with; tells if there was any."""
        chain = set()
        while needed is not None:
            chain.add(_key(needed))
            needed = needed.parent
        idle = self._kept.keys() - chain
        for key in idle:
            del self._kept[key]
        return bool(idle)

    def clear(self) -> None:
        self._kept.clear()

    def _find(self, token_ids: list[int]) -> Found | None:
        found: Found | None = self._store.find(token_ids) if self._store is not None else None
        return found

    def _load(self, found: Found, num_known: int) -> PrefixState | None:
        """What was found, of which the first `num_known` tokens are in memory as well."""
        assert self._store is not None
        caches = self._store.load(found)
        if caches is None:
            return None
        self._stats.disk_tokens += found.length - num_known
        self._stats.disk_bytes += found.nbytes
        self._stats.disk_seconds_saved += found.seconds_saved
        return PrefixState(found.length, [self._from_mlx_lm(cache) for cache in caches])

    def _from_mlx_lm(self, cache: Any) -> Any:
        if not self._traits.batched or not is_plain(cache):
            return cache
        return None if cache.empty() else PrefixKV(*cache.keys_and_values())


def _key(prefix: Prefix | None) -> bytes:
    """The tokens, as windows planned one after the other may find the same prefix."""
    return array("q", prefix.token_ids if prefix else ()).tobytes()


def _to_mlx_lm(layer: Any) -> Any:
    if layer is None:
        return KVCache()
    if not isinstance(layer, PrefixKV):
        return layer
    cache = KVCache()
    cache.state = (layer.keys, layer.values, layer.keys.shape[2])
    return cache
