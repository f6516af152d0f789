"""What a model turns out to be when it is tried: on a few tokens, alone and in a batch.

Models differ in ways that no config declares: some caches cannot hold several rows, some
attention code cannot take rows at different positions. One small trial at start tells, and
costs a few tokens' worth of work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from batchrun.engine.budget import LayerCost
from batchrun.engine.kv import DecodeCaches, Model, PrefillCaches, can_batch

# Two prompts of different length, in ids that every vocabulary has.
LONG, SHORT = [1, 2, 3, 4, 5, 6, 7], [3, 1, 2]

# Logits of the batch may differ from those of the row alone by rounding only; a wrong mask or position
# changes them by a large part of their spread.
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Traits:
    """`vocab_size` is the width of the logits, `costs` what each layer keeps of a sequence;
    `unbatchable` says why rows have to run one at a time, None if they need not."""

    vocab_size: int
    costs: tuple[LayerCost, ...]
    unbatchable: str | None


def probe(model: Model) -> Traits:
    """Try `model`. Raises what the model raises when even one row alone cannot run."""
    alone = [_logits_alone(model, prompt) for prompt in (LONG, SHORT)]
    caches = model.make_cache()
    model(mx.array([LONG]), cache=caches)
    mx.eval([cache.state for cache in caches])
    costs = tuple(_cost(cache) for cache in caches)
    return Traits(alone[0].shape[-1], costs, _why_unbatchable(model, alone))


def _why_unbatchable(model: Model, alone: list[mx.array]) -> str | None:
    if not can_batch(model.make_cache()):
        return "its caches hold one row only"
    try:
        together = _logits_together(model)
    except Exception as error:  # whatever a model does with a batch, one row alone still works
        return f"it fails on a batch ({type(error).__name__}: {error})"
    for row, expected in enumerate(alone):
        spread = mx.max(expected) - mx.min(expected)
        off = mx.max(mx.abs(together[row] - expected))
        if not (off <= TOLERANCE * spread + 1e-6).item():
            return "its answers change in a batch"
    return None


def _logits_alone(model: Model, prompt: list[int]) -> mx.array:
    caches = model.make_cache()
    model(mx.array([prompt[:-1]]), cache=caches)
    return model(mx.array([prompt[-1:]]), cache=caches)[0, -1].astype(mx.float32)


def _logits_together(model: Model) -> mx.array:
    """The last logits of both prompts, of which the short one joins the long one's batch."""
    caches = DecodeCaches(max_rows=2, batched=True)
    width = len(LONG) - 1
    padded = [SHORT[:-1] + [0] * (width - len(SHORT) + 1), LONG[:-1]]
    prefill = PrefillCaches(model, [len(SHORT) - 1, width], batched=True)
    model(mx.array(padded), cache=prefill.layers)
    prefill.finalize(batched=True)
    caches.extend(prefill, [1, 0])
    caches.begin_step()
    logits = model(mx.array([LONG[-1:], SHORT[-1:]]), cache=caches.layers)
    mx.eval(logits)
    return logits[:, -1].astype(mx.float32)


def _cost(cache: Any) -> LayerCost:
    """Bytes from the arrays that a cache holds for one row of a known length."""
    if isinstance(cache, KVCache | RotatingKVCache) and cache.keys is not None:
        per_token = (cache.keys.nbytes + cache.values.nbytes) // cache.keys.shape[2]
        return LayerCost(per_token, cache.max_size if isinstance(cache, RotatingKVCache) else None)
    if can_batch([cache]) and not hasattr(cache, "keys"):
        return LayerCost(fixed=cache.nbytes)
    return LayerCost(per_token=cache.nbytes // len(LONG))
