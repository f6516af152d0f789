from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.models import patches
from batchrun.models.patches import Patches

small = st.integers(1, 4)


class Holder(nn.Module):
    def __init__(self, part: nn.Module):
        super().__init__()
        self.parts = [part]


def installed(part: nn.Module) -> nn.Module:
    holder = Holder(part)
    patches.install(holder)
    return holder.parts[0]


@given(st.data(), st.sampled_from([2, 3]), st.booleans())
def test_equals_the_convolution(data: st.DataObject, dims: int, bias: bool) -> None:
    kernel = tuple(data.draw(small) for _ in range(dims))
    counts = [data.draw(small) for _ in range(dims)]
    rest = [data.draw(st.integers(0, width - 1)) for width in kernel]
    channels, features, batch = data.draw(small), data.draw(small), data.draw(small)
    convolution = (nn.Conv2d if dims == 2 else nn.Conv3d)(
        channels, features, kernel, stride=kernel, bias=bias
    )
    if bias:
        convolution.bias = mx.random.normal((features,))
    sizes = [n * width + more for n, width, more in zip(counts, kernel, rest, strict=True)]
    pixels = mx.random.normal((batch, *sizes, channels))
    product = installed(convolution)
    assert type(product) is Patches
    expected = convolution(pixels)
    assert product(pixels).shape == expected.shape == (batch, *counts, features)
    assert mx.allclose(product(pixels), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(3, 4, 3, stride=2),
        nn.Conv2d(3, 4, 2, stride=3),
        nn.Conv2d(3, 4, 2, stride=2, padding=1),
        nn.Conv2d(3, 4, 2, stride=2, dilation=2),
        nn.Conv2d(4, 4, 2, stride=2, groups=2),
        nn.Conv2d(3, 4, (2, 3), stride=2),
        nn.Conv3d(3, 4, (2, 3, 3), stride=(2, 3, 2)),
        nn.Conv1d(3, 4, 2, stride=2),
        nn.Linear(3, 4),
    ],
)
def test_what_overlaps_or_skips_stays(convolution: nn.Module) -> None:
    assert installed(convolution) is convolution


def test_half_precision_stays_so() -> None:
    convolution = nn.Conv2d(3, 4, 2, stride=2)
    convolution.set_dtype(mx.bfloat16)
    pixels = mx.ones((1, 4, 4, 3), dtype=mx.bfloat16)
    assert installed(convolution)(pixels).dtype == mx.bfloat16
