"""How shared prefixes are computed: each alone, in chunks, on caches of any kind; or in one pass
over several short ones after the same prefix or none, as those of many images are."""

from __future__ import annotations

import time
from dataclasses import dataclass

import mlx.core as mx

from batchrun.engine.features import FeatureCache
from batchrun.engine.inputs import PromptInputs
from batchrun.engine.kv import CacheTraits, Model, PrefillCaches, PrefixCaches
from batchrun.engine.plainkv import PrefillKV, PrefixKV, PrefixState
from batchrun.records import Prefix, Prompt


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A prefix with its caches: `num_fed` of its tokens were computed for it now, and all of them
    take about `seconds`."""

    prefix: Prefix
    state: PrefixState
    seconds: float
    num_fed: int


class PrefixJob:
    """A prefix that is being computed, from where `base` ends, of which `num_read` tokens came from
    disk; `seconds` counts from its first token on."""

    def __init__(
        self,
        model: Model,
        prefix: Prefix,
        inputs: PromptInputs,
        base: PrefixState | None,
        traits: CacheTraits,
        seconds: float,
        num_read: int,
    ):
        self.prefix = prefix
        self.num_read = num_read
        self.seconds = seconds
        self.num_fed = 0
        self._model = model
        self._inputs = inputs
        self._base = base
        self._start = base.length if base else 0
        self._caches = PrefixCaches(model, base, traits)

    @property
    def _num_left(self) -> int:
        return len(self.prefix.token_ids) - self._start - self.num_fed

    @property
    def is_done(self) -> bool:
        return self._num_left <= 0

    def step(self, max_tokens: int) -> int:
        """Feed the next chunk, if there is one; returns its tokens."""
        width = min(max_tokens, self._num_left)
        if width <= 0:
            return 0
        start = time.perf_counter()
        chunk = self._inputs.chunk(self.num_fed, self.num_fed + width)
        self._model(chunk.tokens, self._caches.layers, chunk.given)
        self._caches.evaluate()
        self.num_fed += width
        self.seconds += time.perf_counter() - start
        return width

    def computed(self) -> Computed:
        """The prefix, once it is done."""
        is_read = self._base is not None and not self.num_fed
        state = self._base if is_read else self._caches.state(self._start + self.num_fed)
        assert state is not None
        return Computed(self.prefix, state, self.seconds, self.num_fed)


def compute_together(
    model: Model,
    features: FeatureCache,
    traits: CacheTraits,
    base: PrefixState | None,
    wanted: list[tuple[Prefix, Prompt]],
) -> list[Computed]:
    """Each prefix of `wanted`, with which its prompt begins, from where `base` ends. For models all
    of whose layers are plain."""
    begun = time.perf_counter()
    start = base.length if base else 0
    lengths = [len(prefix.token_ids) - start for prefix, _ in wanted]
    prompts = [prompt for _, prompt in wanted]
    inputs = PromptInputs(model, features, prompts, [start] * len(wanted), lengths)
    caches = PrefillCaches(model, lengths, [base] * len(wanted), traits)
    chunk = inputs.chunk(0, caches.columns)
    model(chunk.tokens, caches.layers, chunk.given)
    states = [_state(caches, base, row) for row in range(len(wanted))]
    mx.eval([_arrays(state) for state in states])
    a_token = (time.perf_counter() - begun) / sum(lengths)
    return [
        Computed(prefix, state, a_token * length, length)
        for (prefix, _), state, length in zip(wanted, states, lengths, strict=True)
    ]


def _state(caches: PrefillCaches, base: PrefixState | None, row: int) -> PrefixState:
    length = caches.lengths[row]
    layers = [
        _row(layer, base.layers[index] if base else None, row, length)
        for index, layer in enumerate(caches.layers)
    ]
    return PrefixState(length + (base.length if base else 0), layers)


def _row(layer: PrefillKV, base: PrefixKV | None, row: int, length: int) -> PrefixKV | None:
    """A row's own copy, as the others' memory is not to be kept with it."""
    if layer.keys is None or layer.values is None:
        return None
    keys, values = (mx.contiguous(part[row : row + 1, :, :length]) for part in layer.state)
    if base is None:
        return PrefixKV(keys, values)
    return PrefixKV(
        mx.concatenate([base.keys, keys], axis=2), mx.concatenate([base.values, values], axis=2)
    )


def _arrays(state: PrefixState) -> list[mx.array]:
    return [array for layer in state.layers if layer for array in (layer.keys, layer.values)]
