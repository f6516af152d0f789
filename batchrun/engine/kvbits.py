"""How keys and values are kept: as they are, or rounded to a few bits a number.

MLX's affine quantisation: numbers go in groups, each with a scale and a bias of its own. A group
never spans tokens, so what is kept of a token does not depend on what is kept beside it.
"""

from __future__ import annotations

import mlx.core as mx

# What an array is kept as: itself, or its packed numbers, scales and biases. All have the array's
# axes but the last.
Parts = tuple[mx.array, ...]

GROUP_SIZES = (64, 32)


def group_size(size: int) -> int | None:
    """Numbers to a group where heads have `size` of them; None if they do not go into groups."""
    return next((group for group in GROUP_SIZES if size % group == 0), None)


def pack(array: mx.array, bits: int | None) -> Parts:
    """Keep `array` (..., head size) in `bits` bits a number; None keeps it as it is, as does a
    head size that does not go into groups."""
    group = group_size(array.shape[-1])
    if bits is None or group is None:
        return (array,)
    return tuple(mx.quantize(array, group_size=group, bits=bits))


def unpack(parts: Parts, bits: int | None) -> mx.array:
    """The array again, in its own type."""
    if bits is None or len(parts) == 1:
        return parts[0]
    packed, scales, biases = parts
    group = packed.shape[-1] * 32 // bits // scales.shape[-1]
    return mx.dequantize(packed, scales, biases, group_size=group, bits=bits)


def nbytes(parts: Parts | None) -> int:
    return sum(part.nbytes for part in parts or ())
