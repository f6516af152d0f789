"""The order in memory that weights have on a CPU.

A layer multiplies by its weights transposed. Where they also lie transposed in memory, a BLAS reads
the product's second matrix along its rows: small batches decode up to a fifth faster, long prompts
as fast as before. Shapes, and what a layer computes, stay the same.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from batchrun.device import Device


def apply(module: nn.Module, device: Device) -> None:
    """Lay out a module whose weights are not yet in memory for its device."""
    if device.kind != "cpu":
        return
    for part in _multiplied(module):
        if part.weight.dtype == mx.float32:
            part.weight = mx.contiguous(part.weight.T).T


def _multiplied(module: nn.Module) -> list[nn.Linear | nn.Embedding]:
    """The layers that multiply by their weights; among them the embedding of a model that has no
    other output layer. Looking up a token there takes longer, by less than an output saves."""
    parts = module.modules()
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    shapes = {part.weight.shape for part in linear}
    embeddings = [part for part in parts if type(part) is nn.Embedding]
    return [*linear, *(part for part in embeddings if part.weight.shape not in shapes)]
