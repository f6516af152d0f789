"""Weights lie in memory as the device's products read them best, and mean what they did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from batchrun import device
from batchrun.models import layout

CPU = replace(device.prepare(), kind="cpu")
METAL = replace(CPU, kind="metal")


def laid_out(path: Path, machine: device.Device = CPU) -> nn.Module:
    module = load_model(path, lazy=True)[0]
    layout.apply(module, machine)
    mx.eval(module.parameters())
    return module


def transposed(module: nn.Module) -> set[str]:
    """The names of the weights whose columns lie together in memory."""
    arrays = {
        name: np.array(value, copy=False) for name, value in tree_flatten(module.parameters())
    }
    return {name for name, array in arrays.items() if array.ndim == 2 and array.flags.f_contiguous}


def test_products_read_their_weights_along_rows(tiny_model: Callable[..., Path]) -> None:
    names = transposed(laid_out(tiny_model("llama", tie_word_embeddings=False)))

    assert "model.layers.0.mlp.up_proj.weight" in names
    assert "lm_head.weight" in names
    assert "model.embed_tokens.weight" not in names


def test_an_embedding_that_is_also_the_output_is_a_product(
    tiny_model: Callable[..., Path],
) -> None:
    names = transposed(laid_out(tiny_model("llama", tie_word_embeddings=True)))

    assert "model.embed_tokens.weight" in names


def test_an_embedding_that_no_layer_takes_whole_is_only_looked_up() -> None:
    module = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.Embedding(50, 24))

    layout.apply(module, CPU)
    mx.eval(module.parameters())

    assert transposed(module) == {"layers.0.weight", "layers.1.weight"}


def test_other_devices_keep_what_is_stored(tiny_model: Callable[..., Path]) -> None:
    assert not transposed(laid_out(tiny_model("llama"), METAL))


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "mamba2", "moe"])
def test_answers_stay_the_same(tiny_model: Callable[..., Path], architecture: str) -> None:
    path = tiny_model(architecture)
    tokens = mx.array([[5, 6, 7, 8]])

    given, expected = (laid_out(path, machine)(tokens) for machine in (CPU, METAL))

    assert mx.allclose(given, expected, rtol=1e-4, atol=1e-5)
