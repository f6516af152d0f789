"""The fast exponentials against the same functions in float64."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models import activations

from batchrun.engine import fastmath
from tests.engine.tinymodels import TinyModel, load

on_a_linux_cpu = pytest.mark.skipif(not fastmath.IS_ON, reason="off on Metal and CUDA")

TINY = np.concatenate([np.geomspace(1e-30, 1, 50_001), -np.geomspace(1e-30, 1, 50_001)])


def grid(low: float, high: float) -> np.ndarray:
    dense = np.linspace(low, high, 1_000_001)
    return np.concatenate([dense, TINY]).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


class Parts:
    """Something with modules to install the fast forms in."""

    def __init__(self, parts):
        self.parts = parts

    def modules(self):
        return self.parts


def assert_accurate(results: mx.array, expected: np.ndarray) -> None:
    off = np.abs(np.array(results).astype(np.float64) - expected)
    worst = np.argmax(off / np.abs(expected))
    assert off[worst] <= 3e-7 * np.abs(expected[worst]), (results[worst], expected[worst])


@on_a_linux_cpu
def test_exp_below_is_accurate():
    x = grid(-87, 0)
    x = x[x <= 0]
    assert_accurate(fastmath.exp_below(mx.array(x), mx.array(0.0)), np.exp(x.astype(np.float64)))
    shifted = fastmath.exp_below(mx.array(x) + 30.0, mx.array(30.0))
    exact = np.exp((x + np.float32(30)).astype(np.float64) - 30)
    assert_accurate(shifted, exact)


@on_a_linux_cpu
def test_silu_is_accurate():
    x = grid(-86.9, 90)
    wide = x.astype(np.float64)
    assert_accurate(fastmath.silu(mx.array(x)), wide * sigmoid(wide))


@on_a_linux_cpu
def test_swiglu_is_accurate():
    gate = grid(-86, 90)
    x = np.random.default_rng(1).uniform(1, 9, gate.shape).astype(np.float32)
    wide = gate.astype(np.float64)
    expected = wide * sigmoid(wide) * x
    assert_accurate(fastmath.swiglu(mx.array(gate), mx.array(x)), expected)


@on_a_linux_cpu
def test_gelu_approx_is_accurate():
    x = grid(-9.9, 12)
    assert_accurate(fastmath.gelu_approx(mx.array(x)), gelu(x.astype(np.float64)))


@on_a_linux_cpu
@pytest.mark.parametrize(
    ("approx", "exact"),
    [("tanh", gelu), ("precise", gelu), ("fast", lambda x: x * sigmoid(1.702 * x))],
)
def test_gelu_modules_are_accurate(approx, exact):
    """As far as a float32 argument of an exponential can be."""
    x = grid(-9.9, 12)
    part, theirs = nn.GELU(approx), nn.GELU(approx)
    fastmath.install(Parts([part]))
    assert type(part) is fastmath.Gelu
    expected = exact(x.astype(np.float64))
    off, upstream_off = (
        np.abs(np.array(one(mx.array(x))) - expected).max() for one in (part, theirs)
    )
    assert off <= max(upstream_off, 1e-6)
    relative = np.abs(np.array(part(mx.array(x))) - expected) / np.abs(expected)
    assert relative.max() <= 2e-5


@on_a_linux_cpu
def test_gelu_by_erf_and_in_half_precision_is_left_to_mlx():
    x = mx.random.normal((1000,), key=mx.random.key(1)) * 4
    for approx, dtype in (("none", mx.float32), ("tanh", mx.bfloat16)):
        part = nn.GELU(approx)
        fastmath.install(Parts([part]))
        found, expected = part(x.astype(dtype)), nn.GELU(approx)(x.astype(dtype))
        assert found.dtype == dtype
        assert mx.array_equal(found, expected).item()


@on_a_linux_cpu
def test_mlx_vlms_own_swiglu_is_replaced():
    from mlx_vlm.models import activations as theirs
    from mlx_vlm.models import mlp

    part = mlp.SwiGLUMLP(8, 16)
    x = mx.random.normal((3, 8), key=mx.random.key(1))
    expected = part.down_proj(theirs.swiglu(part.gate_proj(x), part.up_proj(x)))
    fastmath.install(Parts([part]))
    assert mlp.swiglu is fastmath.swiglu
    assert mx.allclose(part(x), expected, rtol=1e-5, atol=1e-6).item()


@on_a_linux_cpu
@pytest.mark.parametrize(
    "function", [fastmath.silu, fastmath.gelu_approx, lambda x: fastmath.swiglu(x, mx.ones(1))]
)
def test_far_from_zero(function):
    """What has no float32 exponential is the number itself or next to nothing."""
    x = mx.array([0.0, 100.0, 1e30, np.inf])
    assert mx.array_equal(function(x), x).item()
    assert all(-1e-25 < value <= 0 for value in function(mx.array([-100.0, -1e4, -1e10])).tolist())
    assert np.isnan(function(mx.array([np.nan])).item())


def test_scores_that_are_hidden_weigh_nothing():
    weights = fastmath.exp_below(mx.array([[3.0, -1e30]]), mx.array([[3.0]]))
    assert weights[0, 0].item() == 1
    assert weights[0, 1].item() < 1e-37


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_lower_precision_is_left_to_mlx(dtype):
    x = mx.random.normal((1000,), dtype, key=mx.random.key(1)) * 4
    for ours, upstream in ((fastmath.silu, nn.silu), (fastmath.gelu_approx, nn.gelu_approx)):
        assert ours(x).dtype == dtype
        assert mx.array_equal(ours(x), upstream(x)).item()
    assert fastmath.swiglu(x, x).dtype == dtype


@on_a_linux_cpu
def test_inside_traces_of_no_fixed_shape():
    """Models call activations in such traces, where lengths change from call to call."""

    @partial(mx.compile, shapeless=True)
    def traced(gate: mx.array, x: mx.array) -> mx.array:
        return fastmath.silu(gate.astype(mx.float32)) * x + fastmath.gelu_approx(gate) * x

    for length in (3, 40):
        gate = mx.linspace(-6, 6, length)
        result = traced(gate, mx.full((length,), 2.0))
        wide = np.array(gate).astype(np.float64)
        expected = 2 * (wide * sigmoid(wide) + gelu(wide))
        assert np.allclose(np.array(result), expected, rtol=1e-6, atol=1e-6)


@on_a_linux_cpu
@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba2", "moe"])
def test_a_model_answers_the_same_with_them_twice_installed(kind, tiny_model):
    path = tiny_model(kind)
    model, tokens = load(path), mx.array([[5, 9, 33, 120, 7]])
    with pytest.MonkeyPatch.context() as undo:
        for library in (nn, nn.layers, fastmath.mlx_activations):
            undo.setattr(library, "silu", fastmath._upstream_silu)
            undo.setattr(library, "gelu_approx", fastmath._upstream_gelu_approx)
        undo.setattr("batchrun.engine.fastmath.IS_ON", False)
        plain = TinyModel(path).module(tokens)
        mx.eval(plain)
    for _ in range(2):
        fastmath.install(model)
        assert mx.allclose(model.module(tokens), plain, rtol=1e-4, atol=1e-4).item()
    assert nn.silu is fastmath.silu
    assert nn.SiLU()(mx.array([1.0])).item() == fastmath.silu(mx.array([1.0])).item()
    approx = nn.GELU(approx="precise")(mx.array([1.0])).item()
    assert approx == fastmath.gelu_approx(mx.array([1.0])).item()


@on_a_linux_cpu
def test_mlx_lms_own_traces_take_the_fast_forms(tiny_model):
    fastmath.install(load(tiny_model("llama")))
    gate, x = mx.array([-20.0, 1.0]), mx.array([2.0, 2.0])
    expected = (fastmath.silu(gate) * x).tolist()
    assert activations.precise_swiglu(x, gate, x).tolist() == pytest.approx(expected, rel=1e-6)
