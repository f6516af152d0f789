"""Images and videos -> embeddings, several in one call of the vision tower.

Goes through mlx-vlm's `get_input_embeddings` with a prompt of nothing but media, so that it holds
for every architecture. Whether several may share such a call, and how their arrays are then put
together, is tried out the first time: no config tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from batchrun.models.loaded import Features
from batchrun.records import Media

if TYPE_CHECKING:
    from mlx_vlm.models.base import InputEmbeddingsFeatures

# What the language part is told of anyway, or can do without.
_UNDERSTOOD = {
    *("inputs_embeds", "visual_pos_masks", "deepstack_visual_embeds"),
    *("position_ids", "rope_deltas", "attention_mask_4d"),
}
# Encoded together or alone: sums may be added up in another order, and no more.
_TOLERANCE = 1e-2

Layout = tuple[tuple[str, Any], ...]


class Encoder:
    """`encode` is all of it; what has been found out about the model is kept between calls."""

    def __init__(self, module: nn.Module):
        self._module = module
        # By the names and dimensions of the arrays: the axis along which those of several media
        # are put together, of any size or of one; None where that changes the features.
        self._axes_of_any: dict[Layout, int | None] = {}
        self._axes: dict[Layout, int | None] = {}

    def encode(self, media: Sequence[Media]) -> list[Features]:
        """The features of each of `media`, not evaluated. Raises ValueError where the model says
        more of an image than can be kept for it."""
        different = list({medium.digest: medium for medium in media}.values())
        found: dict[bytes, Features] = {}
        for layout, group in _grouped(different, _layout):
            for call, axis in self._calls(layout, group):
                for medium, features in zip(call, self._together(call, axis), strict=True):
                    found[medium.digest] = features
        return [found[medium.digest] for medium in media]

    def _calls(self, layout: Layout, media: list[Media]) -> Iterator[tuple[list[Media], int]]:
        """The media that go through the tower together, and how their arrays are put together."""
        axis = self._axis_of_any(layout, media)
        if axis is not None:
            # Towers attend to images of one size together, where these are neighbours.
            media.sort(key=lambda medium: len(medium.token_ids))
            for _, call in _grouped(media, partial(_shapes, but=axis)):
                yield call, axis
            return
        for _, alike in _grouped(media, _shapes):
            if len(alike) > 1 and layout not in self._axes:
                self._axes[layout] = self._find_axis(alike[:2])
            axis = self._axes[layout] if len(alike) > 1 else 0
            calls = [[medium] for medium in alike] if axis is None else [alike]
            yield from ((call, axis or 0) for call in calls)

    def _axis_of_any(self, layout: Layout, media: list[Media]) -> int | None:
        """Where media of different shapes can be put together, as far as that is known."""
        if layout not in self._axes_of_any:
            first = _shapes(media[0])
            other = next((medium for medium in media if _shapes(medium) != first), None)
            if other is None:
                return None
            self._axes_of_any[layout] = self._find_axis([media[0], other])
        return self._axes_of_any[layout]

    def _find_axis(self, pair: list[Media]) -> int | None:
        alone = [self._together([medium], 0)[0] for medium in pair]
        for axis in (0, 1):
            # Models raise anything on arrays that are not as they expect.
            try:
                together = self._together(pair, axis)
                if all(map(_agree, together, alone)):
                    return axis
            except Exception:  # noqa: BLE001
                continue
        return None

    def _together(self, media: list[Media], axis: int) -> list[Features]:
        tokens = mx.array([[token for medium in media for token in medium.token_ids]])
        inputs = {
            name: mx.array(np.concatenate([medium.inputs[name] for medium in media], axis=axis))
            for name in media[0].inputs
        }
        pixels = inputs.pop("pixel_values", None)
        found = self._module.get_input_embeddings(
            tokens, pixels, mask=mx.ones_like(tokens), **inputs
        )
        _check_understood(found)
        if found.inputs_embeds.shape[1] != tokens.shape[1]:
            raise ValueError("this model puts more embeddings for an image than it has tokens")
        return list(_apart(found, [len(medium.token_ids) for medium in media]))


def _grouped(
    media: Sequence[Media], key: Callable[[Media], Layout]
) -> list[tuple[Layout, list[Media]]]:
    groups: dict[Layout, list[Media]] = {}
    for medium in media:
        groups.setdefault(key(medium), []).append(medium)
    return list(groups.items())


def _layout(medium: Media) -> Layout:
    return tuple((name, array.ndim) for name, array in sorted(medium.inputs.items()))


def _shapes(medium: Media, but: int | None = None) -> Layout:
    """The shapes of its arrays, those along axis `but` aside."""
    return tuple(
        (name, tuple(size for axis, size in enumerate(array.shape) if axis != but))
        for name, array in sorted(medium.inputs.items())
    )


def _check_understood(found: InputEmbeddingsFeatures) -> None:
    for name, value in found.to_dict().items():
        if value is not None and name not in _UNDERSTOOD:
            raise ValueError(f"this model's images come with {name}, which batchrun cannot batch")


def _apart(found: InputEmbeddingsFeatures, lengths: list[int]) -> Iterator[Features]:
    total = sum(lengths)
    visual = np.ones(total, dtype=np.bool_)
    if found.visual_pos_masks is not None:
        visual = np.array(found.visual_pos_masks).reshape(total)
    deep = _stacked(found.deepstack_visual_embeds)
    start = seen = 0
    for length in lengths:
        own = visual[start : start + length]
        count = int(own.sum())
        yield Features(
            found.inputs_embeds[0, start : start + length],
            own,
            None if deep is None else deep[:, seen : seen + count],
        )
        start, seen = start + length, seen + count


def _stacked(layers: mx.array | list[mx.array] | None) -> mx.array | None:
    if isinstance(layers, list):
        return mx.stack(layers) if layers else None
    return layers


def _agree(one: Features, other: Features) -> bool:
    return _are_close(one.embeds, other.embeds) and (
        one.deepstack is None
        or other.deepstack is None
        or _are_close(one.deepstack, other.deepstack)
    )


def _are_close(one: mx.array, other: mx.array) -> bool:
    spread = mx.max(other) - mx.min(other)
    off = mx.max(mx.abs(one - other))
    return bool((off <= _TOLERANCE * spread + 1e-6).item())
