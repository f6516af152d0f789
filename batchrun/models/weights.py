"""Weights into memory, in the right number format, and what goes wrong on the way."""

from __future__ import annotations

from textwrap import shorten

import mlx.core as mx
import mlx.nn as nn

from batchrun.errors import ModelError
from batchrun.models.locate import ModelFiles

# What model classes and MLX raise on files that do not fit them.
LOAD_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, IndexError)


def require(files: ModelFiles) -> None:
    """Raise ModelError where there are no weights."""
    if not any(files.path.glob("model*.safetensors")):
        raise ModelError(
            f"{files.name} has no model*.safetensors; convert it with"
            f" `mlx_lm.convert --hf-path {files.path}`"
        )


def read(module: nn.Module, files: ModelFiles) -> None:
    """Raises ModelError."""
    try:
        mx.eval(module.parameters())
    except RuntimeError as error:
        raise ModelError(
            f"{files.name}: the weights cannot be read ({one_line(error)});"
            " fetch the model again, or take a smaller one if memory ran out"
        ) from error
    mx.clear_cache()


def do_not_fit(files: ModelFiles, error: Exception, library: str) -> ModelError:
    return ModelError(
        f"{files.name}: config.json and weights cannot be loaded together ({one_line(error)});"
        f" fetch the model again, or convert it with a newer {library}"
    )


def adapter_does_not_fit(files: ModelFiles, error: Exception) -> ModelError:
    return ModelError(
        f"adapter {files.adapter} does not fit the model ({one_line(error)});"
        " give the model that it was trained on"
    )


def one_line(error: Exception) -> str:
    return shorten(str(error), 200, placeholder=" ...")
