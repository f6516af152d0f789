"""Weights into memory, in the right number format, and what goes wrong on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import shorten

import mlx.core as mx
import mlx.nn as nn

from batchrun.errors import ModelError
from batchrun.models.locate import ModelFiles

# What model classes and MLX raise on files that do not fit them.
_LOAD_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, IndexError)


def module(
    files: ModelFiles,
    library: str,
    load: Callable[[Path], nn.Module],
    adapt: Callable[[nn.Module, Path], nn.Module],
) -> nn.Module:
    """The model with its adapter, weights not read yet, as the `library` of that name has them
    loaded and adapted. Raises ModelError."""
    if not any(files.path.glob("model*.safetensors")):
        raise ModelError(
            f"{files.name} has no model*.safetensors; convert it with"
            f" `mlx_lm.convert --hf-path {files.path}`"
        )
    try:
        loaded = load(files.path)
    except _LOAD_ERRORS as error:
        raise ModelError(
            f"{files.name}: config.json and weights cannot be loaded together"
            f" ({_one_line(error)}); fetch the model again, or convert it with a newer {library}"
        ) from error
    if files.adapter is None:
        return loaded
    try:
        loaded = adapt(loaded, files.adapter)
    except _LOAD_ERRORS as error:
        raise ModelError(
            f"adapter {files.adapter} does not fit the model ({_one_line(error)});"
            " give the model that it was trained on"
        ) from error
    loaded.eval()  # or the adapter's dropout stays on
    return loaded


def read(module: nn.Module, files: ModelFiles) -> None:
    """Raises ModelError."""
    try:
        mx.eval(module.parameters())
    except RuntimeError as error:
        raise ModelError(
            f"{files.name}: the weights cannot be read ({_one_line(error)});"
            " fetch the model again, or take a smaller one if memory ran out"
        ) from error
    mx.clear_cache()


def _one_line(error: Exception) -> str:
    return shorten(str(error), 200, placeholder=" ...")
