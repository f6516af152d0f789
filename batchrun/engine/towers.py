"""Attention in vision towers: all images of a call at once, and with the fast exponentials.

mlx-vlm's towers for images of any size attend to one image after the other. Images of one size are
a batch like any other; those of a call mostly are of one, as the vision model puts alike ones
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from batchrun.engine import fastmath
from batchrun.engine.kv import Model

# Scores of so many numbers at once stay out of the way of everything else in memory.
_MAX_SCORES = 1 << 23


class GridAttention(nn.Module):
    """In place of the attention of Qwen-VL's towers, with its weights under their names."""

    qkv: nn.Linear
    proj: nn.Linear
    num_heads: int
    scale: float

    def __call__(
        self, x: mx.array, cu_seqlens: mx.array, rotary_pos_emb: mx.array | None = None
    ) -> mx.array:
        """x: (patches, size) of all images; `cu_seqlens` are where each image begins and ends."""
        total = x.shape[0]
        qkv = self.qkv(x).reshape(total, 3, self.num_heads, -1)
        queries, keys, values = (qkv[:, part] for part in range(3))
        if rotary_pos_emb is not None:
            cos, sin = (_per_head(f(rotary_pos_emb)) for f in (mx.cos, mx.sin))
            queries, keys = (_rotated(part, cos, sin) for part in (queries, keys))
        outputs = []
        for piece in _pieces(cu_seqlens.tolist()):
            own = (piece.split(part) for part in (queries, keys, values))
            outputs.append(_joined(_attend(*own, scale=self.scale)))
        output = outputs[0] if len(outputs) == 1 else mx.concatenate(outputs)
        return self.proj(output)


class TowerAttention(nn.Module):
    """In place of the attention that mlx-vlm's towers for images of one size share."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    num_heads: int
    scale: float

    def __call__(self, x: mx.array, mask: mx.array | None = None) -> mx.array:
        queries, keys, values = (
            part(x).reshape(*x.shape[:2], self.num_heads, -1).transpose(0, 2, 1, 3)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        if mask is None:
            output = _attend(queries, keys, values, scale=self.scale)
        else:
            output = mx.fast.scaled_dot_product_attention(
                queries, keys, values, scale=self.scale, mask=mask
            )
        return self.out_proj(output.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))


_REPLACED: dict[str, type[nn.Module]] = {
    "mlx_vlm.models.qwen2_vl.vision.Attention": GridAttention,
    "mlx_vlm.models.qwen2_5_vl.vision.Attention": GridAttention,
    "mlx_vlm.models.qwen3_vl.vision.Attention": GridAttention,
    "mlx_vlm.models.qwen3_vl_moe.vision.Attention": GridAttention,
    "mlx_vlm.models.attention.VisionAttention": TowerAttention,
}


def install(model: Model) -> None:
    """Have the parts of `model` that are one of mlx-vlm's classes above compute the same faster."""
    for part in model.modules():
        kind = type(part)
        part.__class__ = _REPLACED.get(f"{kind.__module__}.{kind.__qualname__}", kind)


@dataclass(frozen=True, slots=True)
class _Piece:
    """`count` images of `length` patches each, one after the other from `start` on."""

    start: int
    count: int
    length: int

    def split(self, part: mx.array) -> mx.array:
        """(patches, heads, size) of all images to (count, heads, length, size) of these."""
        own = part[self.start : self.start + self.count * self.length]
        return own.reshape(self.count, self.length, *part.shape[1:]).transpose(0, 2, 1, 3)


def _pieces(bounds: list[int]) -> Iterator[_Piece]:
    start = bounds[0]
    lengths = (end - begin for begin, end in pairwise(bounds))
    for length, alike in groupby(filter(None, lengths)):
        count = sum(1 for _ in alike)
        yield _Piece(start, count, length)
        start += count * length


def _per_head(angles: mx.array) -> mx.array:
    return mx.tile(angles, (1, 2))[:, None]


def _rotated(part: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    one, other = mx.split(part, 2, axis=-1)
    return (part * cos + mx.concatenate([-other, one], axis=-1) * sin).astype(part.dtype)


def _joined(output: mx.array) -> mx.array:
    """(images, heads, patches, size) to (all patches, all sizes)."""
    count, heads, length, size = output.shape
    return output.transpose(0, 2, 1, 3).reshape(count * length, heads * size)


def _attend(queries: mx.array, keys: mx.array, values: mx.array, *, scale: float) -> mx.array:
    """Each of (images, heads, patches, size) over all patches of its image."""
    if not fastmath.IS_ON or queries.dtype != mx.float32:
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale)
    block = max(_MAX_SCORES // (queries.shape[0] * queries.shape[1] * keys.shape[2]), 1)
    turned = keys.swapaxes(-1, -2)
    blocks: list[Any] = []
    for start in range(0, queries.shape[2], block):
        scores = (queries[:, :, start : start + block] * scale) @ turned
        weights = fastmath.exp_below(scores, mx.max(scores, axis=-1, keepdims=True))
        blocks.append((weights @ values) / fastmath.total(weights))
    return blocks[0] if len(blocks) == 1 else mx.concatenate(blocks, axis=2)
