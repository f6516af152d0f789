"""What a model turns out to be when it is tried: on a few tokens, alone, in a batch, and with a
shared prefix.

Models differ in ways that no config declares: some caches cannot hold several rows, some
attention code cannot take rows at different positions, some does not go through the function that
knows of shared prefixes. A small trial at start tells, and costs a few tokens' worth of work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, RotatingKVCache

from batchrun.engine import kvbits
from batchrun.engine.budget import LayerCost
from batchrun.engine.inputs import text_positions
from batchrun.engine.kv import (
    CacheTraits,
    DecodeCaches,
    Model,
    PrefillCaches,
    PrefixCaches,
    can_batch,
    is_plain,
)
from batchrun.engine.plainkv import PrefixState
from batchrun.errors import ModelError
from batchrun.models.loaded import Given

# Ids that every vocabulary has: two rows of different length after a prefix, and one without it.
PREFIX, LONG, SHORT, LONER = [9, 8, 7, 6, 5], [1, 2, 3, 4, 5, 6, 7], [3, 1, 2], [2, 4, 6, 8]

# Logits of the batch may differ from those of the row alone by rounding only; a wrong mask or
# position changes them by a large part of their spread.
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Traits:
    """`vocab_size` is the width of the logits, `costs` what each layer keeps of a sequence.
    `unbatchable` says why rows have to run one at a time, `unshareable` why each needs its own
    copy of a shared prefix, `unmixable` why those after different prefixes are prefilled one prefix
    after the other, `unpackable` which keys and values cannot be kept in few bits; None if not so.
    """

    vocab_size: int
    costs: tuple[LayerCost, ...]
    unbatchable: str | None
    unshareable: str | None
    unmixable: str | None
    unpackable: str | None

    def caches(self, kv_bits: int | None) -> CacheTraits:
        """How caches are laid out for it."""
        return CacheTraits(
            batched=self.unbatchable is None,
            shares=self.unshareable is None,
            mixes=self.unmixable is None,
            kv_bits=kv_bits,
        )

    def notes(self, kv_bits: int | None) -> list[str]:
        """What there is to say of a run with `kv_bits`."""
        notes = []
        if self.unbatchable:
            notes.append(f"rows run one at a time: {self.unbatchable}")
        elif self.unshareable:
            notes.append(f"each row gets a copy of its prefix: {self.unshareable}")
        if kv_bits and self.unpackable:
            notes.append(f"--kv-bits: not everything is rounded: {self.unpackable}")
        return notes


def probe(model: Model, kv_bits: int | None = None) -> Traits:
    """Try `model`, whose plain layers are to keep `kv_bits` bits a number. Raises ModelError when
    even one row alone cannot run."""
    try:
        alone = _logits_alone(model, LONG)
        mx.eval(alone)
    except Exception as error:  # models raise anything
        raise ModelError(
            f"the model cannot run even one row alone ({type(error).__name__}: {error});"
            " choose another, or a newer mlx-lm"
        ) from error
    unbatchable = _why_not(model, [], shares=False)
    unshareable = unbatchable or _why_not(model, PREFIX, shares=True)
    unmixable = unshareable or _why_not(model, PREFIX, shares=True, mixed=True)
    bits = None if unbatchable else kv_bits
    filled = _filled(model)
    costs = tuple(_costs(filled, bits, is_shared=not unshareable))
    unpackable = _unpackable(filled) if bits else unbatchable
    return Traits(alone.shape[-1], costs, unbatchable, unshareable, unmixable, unpackable)


def _why_not(model: Model, prefix: list[int], *, shares: bool, mixed: bool = False) -> str | None:
    """Why rows cannot run together after `prefix`, prefilled together with a row without it if
    `mixed`; None if they can."""
    if not can_batch(model.make_cache()):
        return "its caches hold one row only"
    prompts = [[*prefix, *LONG], [*prefix, *SHORT], LONER]
    alone = [_logits_alone(model, prompt) for prompt in prompts]
    try:
        together, attended, saw_window = _logits_together(model, prefix, shares=shares, mixed=mixed)
    # Whatever a model does with a batch, one row alone still works.
    except Exception as error:  # noqa: BLE001
        return f"it fails on a batch ({type(error).__name__}: {error})"
    num_plain = sum(map(is_plain, model.make_cache()))
    if shares and (attended != num_plain or saw_window):
        return "its attention is its own"
    if not all(map(_agree, together, alone)):
        return "its answers change in a batch"
    return None


def _agree(logits: mx.array, expected: mx.array) -> bool:
    spread = mx.max(expected) - mx.min(expected)
    off = mx.max(mx.abs(logits - expected))
    return bool((off <= TOLERANCE * spread + 1e-6).item())


def _logits_alone(model: Model, prompt: list[int]) -> mx.array:
    caches = model.make_cache()
    _run(model, [prompt[:-1]], caches, [0])
    return _run(model, [prompt[-1:]], caches, [len(prompt) - 1])[0, -1].astype(mx.float32)


def _run(model: Model, tokens: list[list[int]], caches: list[Any], starts: list[int]) -> mx.array:
    """Logits after `tokens`, the first of each row at its position in `starts`."""
    given = None
    if model.takes_positions:
        given = Given(positions=text_positions(starts, len(tokens[0])))
    return model(mx.array(tokens), caches, given)


def _logits_together(
    model: Model, prefix: list[int], *, shares: bool, mixed: bool
) -> tuple[mx.array, int, bool]:
    """The last logits of LONG and SHORT after `prefix` and of LONER, in one batch; how many
    layers' attention was ours in decoding, and whether one asked for a window."""
    traits = CacheTraits(shares=shares)
    state = None
    if prefix:
        base = PrefixCaches(model, None, traits)
        _run(model, [prefix], base.layers, [0])
        state = base.state(len(prefix))
    caches = DecodeCaches(max_rows=3, traits=traits, shares_short=True)
    pair = [(SHORT, state), (LONG, state)]
    if mixed:
        caches.extend(_prefilled(model, [*pair, (LONER, None)], traits), [1, 0, 2])
    else:
        caches.extend(_prefilled(model, pair, traits), [1, 0])
        caches.extend(_prefilled(model, [(LONER, None)], traits), [0])
    caches.begin_step()
    last = [[prompt[-1]] for prompt in (LONG, SHORT, LONER)]
    starts = [len(prefix) + len(LONG) - 1, len(prefix) + len(SHORT) - 1, len(LONER) - 1]
    logits = _run(model, last, caches.layers, starts)
    mx.eval(logits)
    ring = caches.ring
    return logits[:, -1].astype(mx.float32), ring.num_attended, ring.saw_window


def _prefilled(
    model: Model, rows: list[tuple[list[int], PrefixState | None]], traits: CacheTraits
) -> PrefillCaches:
    """The caches of prompts, all but their last tokens, each after a prefix or none."""
    lengths = [len(prompt) - 1 for prompt, _ in rows]
    caches = PrefillCaches(model, lengths, [state for _, state in rows], traits)
    padded = [prompt[:-1] + [0] * (caches.columns - len(prompt) + 1) for prompt, _ in rows]
    _run(model, padded, caches.layers, [state.length if state else 0 for _, state in rows])
    caches.finalize()
    return caches


def _filled(model: Model) -> list[Any]:
    caches = model.make_cache()
    _run(model, [LONG], caches, [0])
    mx.eval([cache.state for cache in caches])
    return caches


def _unpackable(caches: list[Any]) -> str | None:
    """Which keys and values cannot be kept in few bits, if any."""
    sizes = [
        array.shape[-1]
        for cache in caches
        if is_plain(cache) and cache.keys is not None
        for array in (cache.keys, cache.values)
    ]
    if not sizes:
        return "no layer keeps all its keys and values"
    odd = sorted({size for size in sizes if kvbits.group_size(size) is None})
    return f"heads of {odd[0]} numbers are not a multiple of 32" if odd else None


def _costs(caches: list[Any], kv_bits: int | None, *, is_shared: bool) -> Iterator[LayerCost]:
    """Of every cache, and of those that nested ones are made of: these are never ours."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from _costs(cache.caches, None, is_shared=False)
        else:
            yield _cost(cache, kv_bits, is_shared=is_shared)


def _cost(cache: Any, kv_bits: int | None, *, is_shared: bool) -> LayerCost:
    """Bytes from the arrays that a cache holds for one row of a known length."""
    if is_plain(cache) and cache.keys is not None:
        parts = (*kvbits.pack(cache.keys, kv_bits), *kvbits.pack(cache.values, kv_bits))
        full = _bytes_per_token(cache) if kv_bits else 0
        return LayerCost(
            kvbits.nbytes(parts) // cache.keys.shape[2], is_shared=is_shared, full_per_token=full
        )
    if isinstance(cache, RotatingKVCache) and cache.keys is not None:
        return LayerCost(_bytes_per_token(cache), cache.max_size)
    if can_batch([cache]) and not hasattr(cache, "keys"):
        return LayerCost(fixed=cache.nbytes)
    return LayerCost(per_token=cache.nbytes // len(LONG))


def _bytes_per_token(cache: Any) -> int:
    return int((cache.keys.nbytes + cache.values.nbytes) // cache.keys.shape[2])
