"""Exponentials for a Linux CPU, where MLX's own take some ten times longer than they need.

2^x by splitting off the whole part, which goes into the exponent bits, and a polynomial for the
rest (Cody and Waite, Software Manual for the Elementary Functions, 1980): relative error below 3e-7
in float32. Only plain arithmetic, so that MLX fuses it into one loop. Off on Metal and CUDA.
"""

from __future__ import annotations

import sys

import mlx.core as mx
from mlx_lm.models import activations

from batchrun.engine.kv import Model

IS_ON = mx.default_device() == mx.Device(mx.cpu) and sys.platform == "linux"

_LOG2_E = 1.4426950408889634
# 2^r for r from -1/2 to 1/2: coefficients of r, r^2, ...
_SERIES = (
    0.6931471805599453,
    0.2402265069591007,
    0.05550410866482158,
    0.009618129107628477,
    0.0013333558146428443,
    0.00015403530393381608,
)
# Adding this to a float32 leaves its nearest whole number in the lowest bits.
_ROUND = 12582912.0
# Beyond these the exponent bits overflow.
_LOWEST, _HIGHEST = -126.0, 126.0


def _exp2(x: mx.array) -> mx.array:
    """2^x for x within _LOWEST and _HIGHEST."""
    shifted = x + _ROUND
    rest = x - (shifted - _ROUND)
    # In pairs (Estrin's scheme): MLX fuses expressions only up to a certain depth.
    a, b, c, d, e, f = _SERIES
    square = rest * rest
    high = (c + d * rest) + square * (e + f * rest)
    series = (1.0 + a * rest) + square * (b + rest * high)
    return series * ((shifted.view(mx.int32) << 23) + (127 << 23)).view(mx.float32)


def _exp_below(scores: mx.array, peak: mx.array) -> mx.array:
    return _exp2(mx.maximum((scores - peak) * _LOG2_E, _LOWEST))


def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    power = mx.minimum(mx.maximum(gate * -_LOG2_E, _LOWEST), _HIGHEST)
    return x * (gate / (1.0 + _exp2(power)))


_fused_exp_below = mx.compile(_exp_below)
_fused_swiglu = mx.compile(_swiglu)


def exp_below(scores: mx.array, peak: mx.array) -> mx.array:
    """e^(scores - peak) in float32, where no score is above its peak. What would be less than
    1e-38 is about that."""
    if IS_ON:
        return _fused_exp_below(scores.astype(mx.float32), peak.astype(mx.float32))
    return mx.exp(scores.astype(mx.float32) - peak)


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x, as mlx-lm's."""
    if gate.dtype == mx.float32 and x.dtype == mx.float32:
        return _fused_swiglu(gate, x)
    return _upstream_swiglu(gate, x)


_upstream_swiglu = activations.swiglu


def install(model: Model) -> None:
    """Have `model` use the fast forms, where they are faster."""
    if not IS_ON:
        return
    for name in {type(module).__module__ for module in model.modules()}:
        source = vars(sys.modules[name])
        if source.get("swiglu") is _upstream_swiglu:
            source["swiglu"] = swiglu
