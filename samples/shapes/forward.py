"""The model's own layers applied to padded batches, and what training minimises.

mlx-vlm's tower goes through its images one by one; here they are one batch, which is the same
arithmetic. Knows nothing of drawings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_vlm.models import qwen2_vl
from mlx_vlm.models.qwen2_vl.vision import VisionModel, rotate_half

_HIDDEN = -1e9


class Trained(nn.Module):
    """The model, and throw-away heads that read from a cell's features what lies in it.

    Without them the tower learns next to nothing for a long time: what to look for reaches it
    through one word of an answer.
    """

    def __init__(self, model: qwen2_vl.Model, colours: int, kinds: int, most: int) -> None:
        super().__init__()
        self.model = model
        width = model.config.vision_config.hidden_size
        self.colour = nn.Linear(width, colours)
        self.kind = nn.Linear(width, kinds)
        self.count = nn.Linear(width, most)


class Losses(NamedTuple):
    """`right` is the share of answer tokens, or of cells, foretold."""

    loss: mx.array
    right: mx.array


def features(tower: VisionModel, patches: mx.array, places: mx.array, used: mx.array) -> mx.array:
    """[N, P, values], [N, P, 2], [N, P] -> [N, P / 4, D]: the tower's output for padded images."""
    number, length, _ = patches.shape
    # The patches' values are in the order channel, time, row, column.
    kernel = tower.patch_embed.proj.weight.transpose(0, 4, 1, 2, 3)
    hidden = patches @ kernel.reshape(kernel.shape[0], -1).T
    angles = _angles(tower, places)
    mask = mx.where(used, 0.0, _HIDDEN)[:, None, None, :]
    for block in tower.blocks:
        hidden = hidden + _attend(block.attn, block.norm1(hidden), angles, mask)
        hidden = hidden + block.mlp(block.norm2(hidden))
    return tower.merger(hidden).reshape(number, length // 4, -1)


def cell_losses(trained: Trained, found: mx.array, pictures: dict[str, mx.array]) -> Losses:
    """How well what lies in each cell, and how many shapes there are, is read from features."""
    known = pictures["colours"] >= 0
    colour, kind = trained.colour(found), trained.kind(found)
    loss = _mean(_entropy(colour, pictures["colours"]) + _entropy(kind, pictures["kinds"]), known)
    cells = pictures["used"][:, ::4, None]
    count = trained.count((found * cells).sum(1) / cells.sum(1))
    loss = loss + _entropy(count, pictures["counts"]).mean()
    filled = pictures["colours"] > 0
    right = _hit(colour, pictures["colours"]) & _hit(kind, pictures["kinds"])
    return Losses(loss, _mean(right, filled))


def answer_losses(trained: Trained, found: mx.array, texts: dict[str, mx.array]) -> Losses:
    language = trained.model.language_model.model
    shown = found.reshape(-1, found.shape[-1])[mx.maximum(texts["cells"], 0)]
    embedded = mx.where(
        (texts["cells"] >= 0)[..., None], shown, language.embed_tokens(texts["tokens"])
    )
    hidden = language(None, inputs_embeds=embedded, position_ids=texts["positions"])
    asked = mx.take_along_axis(hidden, texts["answers_at"][..., None], axis=1)
    logits = language.embed_tokens.as_linear(asked)
    right = _hit(logits, texts["answers"]).mean()
    return Losses(_entropy(logits, texts["answers"]).mean(), right)


def _attend(attention: Any, x: mx.array, angles: mx.array, mask: mx.array) -> mx.array:
    number, length, width = x.shape
    split = attention.qkv(x).reshape(number, length, 3, attention.num_heads, -1)
    queries, keys, values = split.transpose(2, 0, 3, 1, 4)
    mixed = mx.fast.scaled_dot_product_attention(
        _rotate(queries, angles), _rotate(keys, angles), values, scale=attention.scale, mask=mask
    )
    return attention.proj(mixed.transpose(0, 2, 1, 3).reshape(number, length, width))


def _angles(tower: VisionModel, places: mx.array) -> mx.array:
    """[N, 1, P, head]: row's and column's angles, for both halves of a head."""
    rotary = tower.rotary_pos_emb
    steps = mx.arange(0, rotary.dim, 2, dtype=mx.float32) / rotary.dim
    angles = places[..., None] * (1.0 / rotary.theta**steps)
    return mx.tile(angles.reshape(*places.shape[:2], -1), (1, 1, 2))[:, None]


def _rotate(x: mx.array, angles: mx.array) -> mx.array:
    return x * mx.cos(angles) + rotate_half(x) * mx.sin(angles)


def _entropy(logits: mx.array, targets: mx.array) -> mx.array:
    return nn.losses.cross_entropy(logits, mx.maximum(targets, 0))


def _hit(logits: mx.array, targets: mx.array) -> mx.array:
    return mx.argmax(logits, axis=-1) == targets


def _mean(values: mx.array, where: mx.array) -> mx.array:
    return (values * where).sum() / mx.maximum(where.sum(), 1)
