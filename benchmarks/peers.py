"""What the scripts of the peers share: the BLAS, the number format, reading rows, telling figures.

To be imported before anything that imports MLX. The BLAS in front of MLX is batchrun's own choice,
so that both sides multiply with the same one; BATCHRUN_BLAS=off leaves the peer as installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from batchrun import device

BLAS = device.prepare().blas

import mlx.core as mx  # noqa: E402
from mlx_lm.utils import dequantize_model  # noqa: E402

Row = dict[str, Any]


def unpack(module: Any, dtype: mx.Dtype) -> None:
    """Every weight as `dtype`, in memory. Scales go first, as products of them are rounded."""
    module.set_dtype(dtype)
    dequantize_model(module)
    module.set_dtype(dtype)
    mx.eval(module.parameters())
    mx.clear_cache()


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_answers(path: Path, rows: Iterable[Row], texts: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row, text in zip(rows, texts, strict=True):
            file.write(json.dumps({"custom_id": row["custom_id"], "text": text}) + "\n")


def print_figures(**figures: float) -> None:
    """One JSON object: these, and the memory at its peak."""
    peak = device.peak_memory()
    memory = {"process_bytes": peak.process, "array_bytes": peak.device}
    print(json.dumps({**figures, **memory, "blas": BLAS}))
