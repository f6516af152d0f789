"""Attention over a prefix that rows share and over what each has of its own, as one softmax.

A shared prefix is one key and value matrix for all its rows, so that their attention over it is one
matrix product per KV head (Hydragen, arXiv 2402.05099). Each part gives its weighted values with
the maximum and the sum of its weights, from which the exact softmax over both follows.

`install` puts `attend` in the place of mlx-lm's `scaled_dot_product_attention`, and of mlx-vlm's,
in the modules of a model: the one place where an upstream name is replaced. For caches other than
ours it is mlx-lm's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models import base

from batchrun.engine import fastmath
from batchrun.engine.kv import Model
from batchrun.engine.plainkv import PackedPrefixKV, PrefillKV, PrefixKV
from batchrun.engine.ring import HIDDEN, OwnMask
from batchrun.engine.ringkv import RingKV

upstream_attention = base.scaled_dot_product_attention

# Queries go in blocks of this many: keys after a block's end are never looked at, and scores
# take a bounded amount of memory.
QUERY_BLOCK = 128

# The layer up to which a decode step is started on a CPU while Python still builds the rest of it:
# one layer runs for longer than all the others take to build.
_STARTED_UP_TO = 1


def install(model: Model) -> None:
    """Have every module of `model` that imports their attention call `attend` instead."""
    for name in {type(module).__module__ for module in model.modules()}:
        source = vars(sys.modules[name])
        if source.get("scaled_dot_product_attention") in _upstreams():
            source["scaled_dot_product_attention"] = attend


def _upstreams() -> list[Any]:
    """mlx-lm's attention and, where it is loaded, mlx-vlm's, which takes and does the same."""
    vlm = sys.modules.get("mlx_vlm.models.base")
    return [upstream_attention, *([vlm.scaled_dot_product_attention] if vlm else [])]


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """mlx-lm's signature. `queries` are (rows, heads, tokens, head size); `keys` and `values` are
    what the cache returned for this layer, without the shared prefix, which the cache knows."""
    if isinstance(cache, RingKV) and isinstance(mask, OwnMask):
        cache.ring.num_attended += sinks is None
        if sinks is None and (cache.ring.groups or fastmath.IS_ON):
            return _decode(queries, keys, values, cache, scale)
        mask = cache.ring.mask(None)
    if sinks is None and isinstance(cache, PrefillKV):
        if not isinstance(mask, mx.array) and (fastmath.IS_ON or cache.is_mixed):
            return _prefill(queries, keys, values, cache, scale)
        if cache.prefix is not None:
            keys, values = cache.with_prefix(keys, values)
    return upstream_attention(queries, keys, values, cache, scale=scale, mask=mask, sinks=sinks)


class _Part(NamedTuple):
    """Attention over some of the keys, in the layout (rows, KV heads, queries, ...): `values` are
    weighted by exp(score - peak) and not yet divided by their `total`."""

    values: mx.array
    peak: mx.array
    total: mx.array


def _decode(
    queries: mx.array, keys: mx.array, values: mx.array, cache: RingKV, scale: float
) -> mx.array:
    folded = _fold(queries * scale, keys.shape[1])
    own = _weigh(_few_scores(folded, keys) + cache.ring.bias, values)
    if cache.ring.groups:
        own = _merge(own, _shared_part(folded, cache))
    attended = _unfold(own, queries)
    if fastmath.IS_ON and cache.index == _STARTED_UP_TO:
        mx.async_eval(attended)
    return attended


def _shared_part(folded: mx.array, cache: RingKV) -> _Part:
    """Attention of every row over its own group's prefix; rows without one get no weight."""
    parts = []
    for group in cache.ring.groups:
        rows = folded if group.is_everyone else folded[group.rows]
        parts.append(_whole_part(rows, group.layer(cache.index)))
    if len(parts) == 1 and cache.ring.groups[0].is_everyone:
        return parts[0]
    if cache.ring.num_loners:
        parts.append(_nothing(folded[: cache.ring.num_loners], parts[0].values.shape[-1]))
    return _Part(*(array[cache.ring.group_order] for array in _concatenated(parts)))


def _prefill(
    queries: mx.array, keys: mx.array, values: mx.array, cache: PrefillKV, scale: float
) -> mx.array:
    """Causal attention of the newest tokens over `keys`, and over all of each row's prefix."""
    heads = keys.shape[1]
    blocks = []
    for start, block in _query_blocks(queries * scale):
        end = keys.shape[2] - queries.shape[2] + start + block.shape[2]
        folded = _fold(block, heads)
        scores = folded @ keys[:, :, :end].swapaxes(-1, -2) + _causal_bias(block, heads, end)
        part = _weigh(scores, values[:, :, :end])
        if any(prefix for prefix, _ in cache.groups):
            part = _merge(part, _prefix_part(folded, cache, values.shape[-1]))
        blocks.append(_unfold(part, block))
    return mx.concatenate(blocks, axis=2) if len(blocks) > 1 else blocks[0]


def _prefix_part(folded: mx.array, cache: PrefillKV, size: int) -> _Part:
    """Attention of every row over its own prefix, whose values are of `size`."""
    parts, row = [], 0
    for prefix, count in cache.groups:
        rows = folded[row : row + count]
        parts.append(_whole_part(rows, prefix) if prefix else _nothing(rows, size))
        row += count
    return _concatenated(parts)


def _query_blocks(queries: mx.array) -> Iterator[tuple[int, mx.array]]:
    for start in range(0, queries.shape[2], QUERY_BLOCK):
        yield start, queries[:, :, start : start + QUERY_BLOCK]


def _causal_bias(block: mx.array, heads: int, end: int) -> mx.array:
    """0 or HIDDEN, (queries, keys): query i of the block is key end - length + i, for each of
    the heads that share a KV head."""
    length = block.shape[2]
    position = mx.arange(end - length, end)[:, None]
    bias = mx.where(mx.arange(end)[None] <= position, 0.0, HIDDEN).astype(mx.float32)
    return mx.tile(bias, (block.shape[1] // heads, 1))


def _few_scores(folded: mx.array, keys: mx.array) -> mx.array:
    """For far fewer queries than keys: keys go first in the product, as an OpenBLAS packs both
    matrices, and the first along its rows."""
    return (keys @ folded.swapaxes(-1, -2)).swapaxes(-1, -2)


def _whole_part(folded: mx.array, prefix: PrefixKV | PackedPrefixKV) -> _Part:
    """Every query of every row over the same prefix, all of which is seen."""
    rows, heads, queries, size = folded.shape
    together = folded.swapaxes(0, 1).reshape(heads, rows * queries, size)
    part = _weigh(together @ prefix.keys[0].swapaxes(-1, -2), prefix.values[0])
    return _Part(*(array.reshape(heads, rows, queries, -1).swapaxes(0, 1) for array in part))


def _weigh(scores: mx.array, values: mx.array) -> _Part:
    peak = mx.max(scores, axis=-1, keepdims=True)
    weights = fastmath.exp_below(scores, peak)
    return _Part(weights.astype(values.dtype) @ values, peak, fastmath.total(weights))


def _nothing(folded: mx.array, size: int) -> _Part:
    shape = folded.shape[:-1]
    hidden = mx.full((*shape, 1), HIDDEN)
    return _Part(mx.zeros((*shape, size), folded.dtype), hidden, mx.zeros((*shape, 1)))


def _merge(one: _Part, other: _Part) -> _Part:
    peak = mx.maximum(one.peak, other.peak)
    share, other_share = mx.exp(one.peak - peak), mx.exp(other.peak - peak)
    return _Part(
        one.values * share + other.values * other_share,
        peak,
        one.total * share + other.total * other_share,
    )


def _concatenated(parts: list[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    return _Part(*(mx.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _fold(queries: mx.array, heads: int) -> mx.array:
    """(rows, heads, tokens, size) to (rows, KV heads, heads of each x tokens, size)."""
    rows, num_heads, tokens, size = queries.shape
    return queries.reshape(rows, heads, num_heads // heads * tokens, size)


def _unfold(part: _Part, queries: mx.array) -> mx.array:
    """The attention in the layout of `queries`."""
    rows, heads, tokens, _ = queries.shape
    return (part.values / part.total).reshape(rows, heads, tokens, -1).astype(queries.dtype)
