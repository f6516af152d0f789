"""The convolution that cuts an image into patches, as one matrix product.

Where the kernel moves by its own size, no pixel is in two places, and a convolution is nothing but
a product of patches and kernels (An Image is Worth 16x16 Words, arXiv 2010.11929, calls it a linear
projection). MLX's convolutions know nothing of that.
"""

from __future__ import annotations

from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map


class Patches(nn.Module):
    """Stands in for a Conv2d or Conv3d whose stride is its kernel's size, with the same weights
    under the same names. Takes (B, *sizes, channels), gives (B, *(sizes / kernel), features)."""

    def __init__(self, convolution: nn.Conv2d | nn.Conv3d):
        super().__init__()
        self.weight = convolution.weight
        if "bias" in convolution:
            self.bias = convolution.bias

    def __call__(self, x: mx.array) -> mx.array:
        features, *kernel, channels = self.weight.shape
        patches = _cut(x, kernel)
        weight = mx.moveaxis(self.weight, -1, 1).reshape(features, channels * prod(kernel))
        projected = patches @ weight.T
        return projected + self.bias if "bias" in self else projected


def _cut(x: mx.array, kernel: list[int]) -> mx.array:
    """(B, *sizes, channels) to (B, *(sizes / kernel), numbers of a patch), channel by channel, as
    processors give them: Qwen's patches come as they are. What is left over at the ends is dropped,
    as a convolution does."""
    batch, *sizes, channels = x.shape
    counts = [size // width for size, width in zip(sizes, kernel, strict=True)]
    whole = tuple(slice(count * width) for count, width in zip(counts, kernel, strict=True))
    x = x[(slice(None), *whole)]
    split = [number for pair in zip(counts, kernel, strict=True) for number in pair]
    x = x.reshape(batch, *split, channels)
    dims = len(kernel)
    order = [0, *range(1, 2 * dims, 2), 2 * dims + 1, *range(2, 2 * dims + 1, 2)]
    return x.transpose(order).reshape(batch, *counts, channels * prod(kernel))


def install(module: nn.Module) -> None:
    """Put `Patches` in place of every convolution in `module` that they equal."""
    leaves = tree_map(_replaced, module.leaf_modules(), is_leaf=nn.Module.is_module)
    module.update_modules(leaves)


def _replaced(part: Any) -> Any:
    if type(part) is nn.Conv3d or (type(part) is nn.Conv2d and part.groups == 1):
        return Patches(part) if _cuts(part) else part
    return part


def _cuts(convolution: nn.Conv2d | nn.Conv3d) -> bool:
    """Whether each number of the input is in one place of the convolution at most."""
    kernel = convolution.weight.shape[1:-1]
    dilation = _each(convolution.dilation, kernel)
    padding = _each(convolution.padding, kernel)
    return _each(convolution.stride, kernel) == kernel and set(dilation) == {1} and not any(padding)


def _each(setting: int | tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
    return (setting,) * len(kernel) if isinstance(setting, int) else tuple(setting)
