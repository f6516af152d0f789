"""Rotary positions that are kept, against the modules that they are mixed into."""

from __future__ import annotations

import copy

import mlx.core as mx
import mlx.nn as nn
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.rope_utils import Llama3RoPE, YarnRoPE

from batchrun.engine import rotary
from tests.engine.test_fastmath import Parts, on_a_linux_cpu

LLAMA3 = {"factor": 8.0, "original_max_position_embeddings": 64}


def ropes():
    return [
        nn.RoPE(16),
        nn.RoPE(8, base=500.0, scale=0.25),
        Llama3RoPE(16, scaling_config=LLAMA3),
    ]


def vectors(rows, columns, size=16, seed=0):
    return mx.random.normal((rows, 3, columns, size), key=mx.random.key(seed))


def kept(*parts):
    ours = copy.deepcopy(list(parts))
    rotary.install(Parts(ours))
    return ours


def assert_same(ours, theirs, x, offset):
    assert mx.allclose(ours(x, offset=offset), theirs(x, offset=offset), atol=1e-5).item()


@on_a_linux_cpu
@given(
    st.integers(0, 2),
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 900), st.lists(st.integers(0, 900), min_size=2, max_size=2)),
            st.integers(1, 9),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_turns_are_those_of_the_module_whatever_was_asked_before(number, calls):
    theirs = ropes()[number]
    (ours,) = kept(theirs)
    assert type(ours) in rotary._KEPT.values()
    for seed, (positions, columns) in enumerate(calls):
        x = vectors(2, columns, seed=seed)
        offset = positions if isinstance(positions, int) else rotary.lasting(mx.array(positions))
        assert_same(ours, theirs, x, offset)
        assert_same(ours, theirs, x + 1, offset)


@on_a_linux_cpu
def test_modules_that_turn_alike_ask_upstream_once():
    first, second, other = kept(nn.RoPE(16), nn.RoPE(16), nn.RoPE(16, base=100.0))
    assert first.turns is second.turns
    assert first.turns is not other.turns
    positions = rotary.lasting(mx.array([3, 70]))
    first(vectors(2, 1), offset=positions)
    turned = first.turns._cos
    second(vectors(2, 1), offset=positions)
    assert first.turns._cos is turned
    second(vectors(2, 1), offset=rotary.lasting(mx.array([4, 71])))
    assert first.turns._cos is not turned


@on_a_linux_cpu
def test_positions_that_change_in_place_are_not_kept():
    theirs = nn.RoPE(16)
    (ours,) = kept(theirs)
    positions, x = mx.array([3, 70]), vectors(2, 1)
    for _ in range(3):
        assert_same(ours, theirs, x, positions)
        positions += 1


@on_a_linux_cpu
def test_half_precision_is_left_to_mlx():
    (ours,) = kept(nn.RoPE(16))
    x = vectors(1, 4).astype(mx.bfloat16)
    found = ours(x, offset=5)
    assert found.dtype == mx.bfloat16
    assert mx.array_equal(found, nn.RoPE(16)(x, offset=5)).item()


@pytest.mark.parametrize("part", [nn.RoPE(16, traditional=True), YarnRoPE(16)])
def test_modules_that_turn_otherwise_stay_as_they_are(part):
    kind = type(part)
    rotary.install(Parts([part]))
    assert type(part) is kind


def test_off_on_metal_and_cuda(monkeypatch):
    monkeypatch.setattr(rotary, "IS_ON", False)
    assert [type(part) for part in kept(*ropes())] == [type(part) for part in ropes()]
