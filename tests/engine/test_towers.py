"""The attention of vision towers against mlx-vlm's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.engine import fastmath, towers
from batchrun.engine.towers import GridAttention, TowerAttention
from tests import seeing
from tests.seeing import picture

GRIDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
DIMS, HEADS = 32, 2

anywhere = pytest.mark.parametrize("is_on", [fastmath.IS_ON, False])


class Alone:
    def __init__(self, part: nn.Module):
        self.part = part

    def modules(self) -> list[nn.Module]:
        return [self.part]


def before_and_after(make: Callable[[], Any], *inputs: mx.array) -> tuple[mx.array, mx.array]:
    part = make()
    expected = part(*inputs)
    mx.eval(expected)
    towers.install(Alone(part))
    return expected, part(*inputs)


@anywhere
@pytest.mark.parametrize("kind", GRIDS)
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8), room=st.sampled_from([1, 99]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_images_of_any_sizes_attend_to_themselves(
    kind: str, is_on: bool, lengths: list[int], room: int
) -> None:
    lengths = [*lengths, 3]
    attention = importlib.import_module(f"mlx_vlm.models.{kind}.vision").Attention
    x = mx.random.normal((sum(lengths), DIMS), key=mx.random.key(1))
    angles = mx.random.normal((sum(lengths), DIMS // HEADS // 2), key=mx.random.key(2))
    # Empty ones are left out by the towers themselves.
    bounds = mx.array(np.cumsum([0, *filter(None, lengths)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastmath, "IS_ON", is_on)
        patch.setattr(towers, "_MAX_SCORES", room)
        made = attention(DIMS, HEADS)
        expected, found = before_and_after(lambda: made, x, bounds, angles)
        assert type(made) is GridAttention
        assert mx.allclose(found, expected, rtol=1e-5, atol=1e-5)


@anywhere
@pytest.mark.parametrize("is_masked", [False, True])
def test_images_of_one_size(is_masked: bool, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlx_vlm.models.attention import VisionAttention

    monkeypatch.setattr(fastmath, "IS_ON", is_on)
    x = mx.random.normal((3, 9, DIMS), key=mx.random.key(1))
    mask = mx.random.uniform(shape=(3, 1, 1, 9), key=mx.random.key(2)) > 0.5
    made = VisionAttention(DIMS, HEADS)
    expected, found = before_and_after(lambda: made, x, *([mask] if is_masked else []))
    assert type(made) is TowerAttention
    assert mx.allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_half_precision_stays_so() -> None:
    from mlx_vlm.models.attention import VisionAttention

    made = VisionAttention(DIMS, HEADS)
    made.set_dtype(mx.float16)
    x = mx.random.normal((1, 9, DIMS), mx.float16, key=mx.random.key(1))
    expected, found = before_and_after(lambda: made, x)
    assert found.dtype == mx.float16
    assert mx.allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_other_parts_stay_as_they_are() -> None:
    part = nn.Linear(2, 2)
    towers.install(Alone(part))
    assert type(part) is nn.Linear


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "idefics3", "gemma3"])
def test_a_model_sees_the_same_with_it(kind: str, tiny_vision: Callable[[str], Path]) -> None:
    path = tiny_vision(kind)
    how = seeing.processor(path)
    seer = seeing.model.__wrapped__(path)
    media = []
    for seed, size in enumerate([(100, 60), (60, 100), (100, 60), (112, 112)]):
        one = [picture(*size, seed)]
        processed = seeing.process(how, seeing.ask(how, one), one)
        media += [span.media for span in seeing.spans(how, processed, one)]
    expected = seer.encode(media)
    mx.eval([features.embeds for features in expected])
    towers.install(seer)
    assert any(isinstance(part, GridAttention | TowerAttention) for part in seer.modules())
    for features, own in zip(seer.encode(media), expected, strict=True):
        assert mx.allclose(features.embeds, own.embeds, rtol=1e-3, atol=1e-4)
