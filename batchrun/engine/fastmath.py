"""Exponentials for a Linux CPU, where MLX's own take some ten times longer than they need.

e^x = 2^n e^r, where the whole number n goes into the exponent bits, and a polynomial gives e^r
(Cody and Waite, Software Manual for the Elementary Functions, 1980). Activations that models call
inside traces of no fixed shape, where MLX cannot look at bits, take MLX's power instead: slower
than that, and still much faster than its exp. Results above 1e-35 are right to 3e-7 of themselves,
smaller ones stay small; those of `Gelu` as far as a float32 argument of an exponential can be. For
inference: gradients are not those of the functions. Off on Metal and CUDA.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
from mlx.nn.layers import activations as mlx_activations
from mlx_lm.models import activations

if TYPE_CHECKING:
    from batchrun.engine.kv import Model

IS_ON = mx.default_device() == mx.Device(mx.cpu) and sys.platform == "linux"

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: whole numbers of up to 15 bits times the first are exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# e^r - 1 - r over r^2, with the least relative error for r from -ln(2)/2 to ln(2)/2.
_SERIES = (
    0.4999999333346331,
    0.16666518938415292,
    0.04166840797925596,
    0.00836892181137225,
    0.0013814173840300547,
)
# Adding this to a float32 leaves its nearest whole number in the lowest bits.
_ROUND = 12582912.0
# Beyond these the exponent bits overflow.
_LOWEST, _HIGHEST = -87.0, 87.0

# The float32 nearest to e, and how far its logarithm is from 1.
_E = 2.7182817459106445
_SHORT_OF_E = 1.0 - math.log(_E)

# gelu_approx(x) is x / (1 + e^-(x (a + b x^2))): tanh written as what it is made of.
_GELU_A = 2 * math.sqrt(2 / math.pi)
_GELU_B = 0.044715 * _GELU_A

_upstream_swiglu = activations.swiglu
_upstream_silu = nn.silu
_upstream_gelu_approx = nn.gelu_approx


# For any shape: MLX would keep a trace of every new one, and look through all of them at each call.
_compiled = partial(mx.compile, shapeless=True)


def _within_range(x: mx.array) -> mx.array:
    return mx.minimum(mx.maximum(x, _LOWEST), _HIGHEST)


def _reduce(x: mx.array) -> tuple[mx.array, mx.array]:
    """r and n of e^x = 2^n e^r, both as float32."""
    whole = (x * _LOG2_E + _ROUND) - _ROUND
    return (x - whole * _LN2_HIGH) - whole * _LN2_LOW, whole


def _raise(rest: mx.array, power: mx.array) -> mx.array:
    """power e^rest, the series in pairs (Estrin's scheme)."""
    a, b, c, d, e = _SERIES
    square = rest * rest
    series = (a + b * rest) + square * (c + rest * (d + e * rest))
    return (1.0 + (rest + square * series)) * power


_reduced = _compiled(_reduce)
_raised = _compiled(_raise)
_power_bits = _compiled(lambda whole: (whole.astype(mx.int32) + 127) << 23)
_below = _compiled(lambda scores, peak: mx.maximum(scores - peak, _LOWEST))
_negative_within_range = _compiled(lambda x: _within_range(-x))
_gated = _compiled(lambda gate, x, power: x * (gate / (1.0 + power)))
_squashed = _compiled(lambda x, power: x / (1.0 + power))


def _exp(x: mx.array) -> mx.array:
    """e^x for x within _LOWEST and _HIGHEST. In several kernels: a compiler does not vectorise one
    that does it all, which costs more than what is in between costs on its way through memory."""
    rest, whole = _reduced(x)
    return _raised(rest, _power_bits(whole).view(mx.float32))


# MLX's names for gelu by tanh and by a sigmoid: what of x goes into the exponential.
_GELU_EXPONENTS = {
    "precise": _compiled(lambda x: _within_range(x * (-_GELU_A - _GELU_B * x * x))),
    "fast": _compiled(lambda x: _within_range(-1.702 * x)),
}
_GELU_EXPONENTS["tanh"] = _GELU_EXPONENTS["precise"]


@_compiled
def _silu(x: mx.array) -> mx.array:
    power = _within_range(-x)
    return x / (1.0 + mx.power(_E, power) * (1.0 + _SHORT_OF_E * power))


@_compiled
def _gelu_approx(x: mx.array) -> mx.array:
    # A float32 exponent would be off by up to 8e-6 where e^x is large.
    wide = x.astype(mx.float64)
    exact = _within_range(wide * (-_GELU_A - _GELU_B * wide * wide))
    power = exact.astype(mx.float32)
    rest = (exact - power.astype(mx.float64)).astype(mx.float32)
    return x / (1.0 + mx.power(_E, power) * (1.0 + (_SHORT_OF_E * power + rest)))


def exp_below(scores: mx.array, peak: mx.array) -> mx.array:
    """e^(scores - peak) in float32, where no score is above its peak. What would be less than
    1e-38 is about that."""
    if IS_ON:
        return _exp(_below(scores.astype(mx.float32), peak.astype(mx.float32)))
    return mx.exp(scores.astype(mx.float32) - peak)


def total(weights: mx.array) -> mx.array:
    """Sums over the last axis, which stays. On a CPU a product with ones is four times as fast as
    MLX's sum."""
    if IS_ON:
        return weights @ mx.ones((weights.shape[-1], 1), weights.dtype)
    return mx.sum(weights, axis=-1, keepdims=True)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x, as mlx-lm's."""
    if gate.dtype == mx.float32 and x.dtype == mx.float32:
        return _gated(gate, x, _exp(_negative_within_range(gate)))
    return _upstream_swiglu(gate, x)


def silu(x: mx.array) -> mx.array:
    """x / (1 + e^-x), as MLX's, also inside traces of no fixed shape."""
    return _silu(x) if x.dtype == mx.float32 else _upstream_silu(x)


def gelu_approx(x: mx.array) -> mx.array:
    """The tanh form of gelu, as MLX's, also inside traces of no fixed shape."""
    return _gelu_approx(x) if x.dtype == mx.float32 else _upstream_gelu_approx(x)


class Gelu(nn.GELU):
    """`nn.GELU` outside traces, where a tower has it between two products."""

    _approx: str

    def __call__(self, x: mx.array) -> mx.array:
        exponent = _GELU_EXPONENTS.get(self._approx)
        if exponent is None or x.dtype != mx.float32:
            upstream: mx.array = super().__call__(x)
            return upstream
        return _squashed(x, _exp(exponent(x)))


def install(model: Model) -> None:
    """Have `model` use the fast forms, where they are faster. All models of a process share MLX's
    own activations, and mlx-lm's are replaced where `model` has imported them."""
    if not IS_ON:
        return
    for name in {type(module).__module__ for module in model.modules()}:
        source = vars(sys.modules[name])
        if source.get("swiglu") in _upstream_swiglus():
            source["swiglu"] = swiglu
    for module in model.modules():
        if type(module) is nn.GELU:
            module.__class__ = Gelu
    for library in (nn, nn.layers, mlx_activations):
        library.silu, library.gelu_approx = silu, gelu_approx
    nn.SiLU.__call__ = lambda _, x: silu(x)


def _upstream_swiglus() -> list[Any]:
    """mlx-lm's and, where it is loaded, mlx-vlm's, which takes and does the same."""
    vlm = sys.modules.get("mlx_vlm.models.activations")
    return [_upstream_swiglu, *([vlm.swiglu] if vlm else [])]
