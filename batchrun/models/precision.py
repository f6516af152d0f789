"""The number format a model runs in: as stored, as asked, or float32 on a CPU.

On a CPU only float32 products use the BLAS: half precision and quantised ones run 20 times slower,
and gain nothing from a batch.
"""

from __future__ import annotations

import sys
from collections import Counter
from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path, tree_unflatten
from mlx_lm.utils import dequantize_model

from batchrun.device import Device

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


def apply(module: nn.Module, wanted: str | None, device: Device) -> str | None:
    """Bring a module whose weights are not yet in memory to its format; returns a note, or None.

    Quantised layers stay so except for float32 on a CPU with room for it. Without room nothing
    changes there unless a format was asked for.
    """
    if device.kind != "cpu" or wanted not in (None, "float32"):
        if wanted is not None:
            _cast(module, wanted)
        return None
    needed = float32_bytes(module)
    if needed > device.memory_limit * 2 // 3:
        if wanted is not None:
            _cast(module, wanted)
        return (
            f"As float32 the weights would take {needed / 1e9:.1f} GB, more than this machine has"
            " room for: they stay as stored, which is slow on a CPU"
        )
    _cast(module, "float32")
    if not _has_global_scales(module):  # dequantize_model does not apply them
        dequantize_model(module)
        _dequantize_experts(module)
        _cast(module, "float32")
    return None


def name_of(module: nn.Module) -> str:
    """The floating format that most parameters have: "float32", "bfloat16", ..."""
    sizes: Counter[str] = Counter()
    for _, value in tree_flatten(module.parameters()):
        if mx.issubdtype(value.dtype, mx.floating):
            sizes[str(value.dtype).removeprefix("mlx.core.")] += value.size
    return sizes.most_common(1)[0][0] if sizes else "none"


def weights_bytes(module: nn.Module) -> int:
    return sum(value.nbytes for _, value in tree_flatten(module.parameters()))


def float32_bytes(module: nn.Module) -> int:
    """Bytes of all weights as float32, packed ones unpacked."""
    return 4 * sum(_numbers(part) for _, part in module.named_modules())


def _numbers(module: nn.Module) -> int:
    """How many numbers a module's own arrays stand for."""
    arrays: dict[str, Any] = {k: v for k, v in module.items() if isinstance(v, mx.array)}
    if "scales" not in arrays:
        return sum(value.size for value in arrays.values())
    rows = prod(arrays["scales"].shape)
    return rows * int(module.group_size) + (arrays["bias"].size if "bias" in arrays else 0)


def _cast(module: nn.Module, name: str) -> None:
    """All floating parameters but those that the architecture wants left alone."""
    # mlx-lm's own, optional hook: few architectures define it.
    may_cast = getattr(module, "cast_predicate", lambda _: True)

    def cast(path: str, value: mx.array) -> mx.array:
        is_number = mx.issubdtype(value.dtype, mx.floating)
        return value.astype(DTYPES[name]) if is_number and may_cast(path) else value

    module.update(tree_map_with_path(cast, module.parameters()))


def _dequantize_experts(module: nn.Module) -> None:
    """mlx-vlm's experts, which mlx-lm's function does not know."""
    theirs = sys.modules.get("mlx_vlm.models.switch_layers")
    if theirs is None:
        return
    unpacked = []
    for name, part in module.named_modules():
        if type(part) is theirs.QuantizedSwitchLinear:
            shape = (part.input_dims, part.output_dims, part.num_experts)
            experts = theirs.SwitchLinear(*shape, bias="bias" in part)
            experts.weight = mx.dequantize(
                part.weight, part.scales, part.biases, part.group_size, part.bits, part.mode
            )
            if "bias" in part:
                experts.bias = part.bias
            unpacked.append((name, experts))
    if unpacked:
        module.update_modules(tree_unflatten(unpacked))


def _has_global_scales(module: nn.Module) -> bool:
    return any(name.endswith("global_scale") for name, _ in tree_flatten(module.parameters()))
