"""Rotary positions on a Linux CPU, where MLX works out cosines and sines anew for the queries and
the keys of every layer.

Here they are worked out once a pass, by the module's own code: what it makes of (1, 0) is cosine
and sine. Off on Metal and CUDA, where one kernel does it all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import Llama3RoPE

from batchrun.engine.fastmath import IS_ON

if TYPE_CHECKING:
    from batchrun.engine.kv import Model

# Modules that turn a vector at this position alike do so at all.
_SAMPLE_POSITION = 97

_lasting: mx.array | None = None


def lasting(positions: mx.array) -> mx.array:
    """`positions`, declared to stay as they are, unlike those of mlx-lm's caches, which change in
    place. Holds until the next are declared."""
    global _lasting
    _lasting = positions
    return positions


class Turns:
    """Cosines and sines, (rows or 1, 1, columns, size / 2) each, of the positions last asked for by
    any of the modules that turn alike."""

    def __init__(self) -> None:
        self._columns = 0
        self._positions: int | mx.array | None = None
        self._cos = self._sin = mx.array(0.0)

    def are_for(self, positions: int | mx.array, columns: int) -> bool:
        if columns != self._columns or type(positions) is not type(self._positions):
            return False
        return positions is self._positions or (
            isinstance(positions, int) and positions == self._positions
        )

    def set(self, positions: int | mx.array, columns: int, turned: mx.array) -> None:
        """`turned`: what (1, 0) has become."""
        self._positions, self._columns = positions, columns
        self._cos, self._sin = mx.split(turned, 2, axis=-1)

    def apply(self, x: mx.array) -> mx.array:
        first, second, *rest = mx.split(x, self._ends(x.shape[-1]), axis=-1)
        return mx.concatenate([*_turned(first, second, self._cos, self._sin), *rest], axis=-1)

    def _ends(self, size: int) -> list[int]:
        half = self._cos.shape[-1]
        return [half] if size == 2 * half else [half, 2 * half]


def _turn(x: mx.array, y: mx.array, cos: mx.array, sin: mx.array) -> tuple[mx.array, mx.array]:
    return x * cos - y * sin, x * sin + y * cos


# For any shape: see fastmath.
_turned = mx.compile(_turn, shapeless=True)


class _Kept(nn.Module):
    """Mixed into a module of rotary positions."""

    dims: int
    turns: Turns

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """As the module's own, of x (rows, heads, columns, size)."""
        if x.dtype != mx.float32 or not (isinstance(offset, int) or offset is _lasting):
            upstream: mx.array = super().__call__(x, offset)
            return upstream
        rows, _, columns, _ = x.shape
        if not self.turns.are_for(offset, columns):
            ones = _ones(1 if isinstance(offset, int) else rows, columns, self.dims)
            self.turns.set(offset, columns, super().__call__(ones, offset))
        return self.turns.apply(x)


def _ones(rows: int, columns: int, size: int) -> mx.array:
    """(1, 0) for every pair of numbers that is turned: (rows, 1, columns, size)."""
    half = mx.ones((rows, 1, columns, size // 2))
    return mx.concatenate([half, mx.zeros_like(half)], axis=-1)


class KeptRoPE(_Kept, nn.RoPE):
    """`nn.RoPE` with its turns kept."""


class KeptLlama3RoPE(_Kept, Llama3RoPE):
    """`Llama3RoPE` with its turns kept."""


_KEPT: dict[type[nn.Module], type[_Kept]] = {nn.RoPE: KeptRoPE, Llama3RoPE: KeptLlama3RoPE}


def install(model: Model) -> None:
    """Have `model` keep its turns where that is faster. Modules that turn neighbours instead of
    halves stay as they are."""
    if not IS_ON:
        return
    kinds: dict[bytes, Turns] = {}
    for module in model.modules():
        kept = _KEPT.get(type(module))
        if kept is None or module.traditional:
            continue
        sample = bytes(memoryview(module(_ones(1, 1, module.dims), offset=_SAMPLE_POSITION)))
        module.turns = kinds.setdefault(sample, Turns())
        module.__class__ = kept
