"""Text models through mlx-lm: weights in memory, logits out."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from textwrap import shorten

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import MODEL_REMAPPING, load_adapters, load_model

from batchrun.config import ModelConfig
from batchrun.device import Device
from batchrun.errors import ModelError
from batchrun.models import precision
from batchrun.models.loaded import LoadedModel
from batchrun.models.locate import ModelFiles
from batchrun.models.tokenizer import LoadedTokenizer

# What mlx-lm's model classes and MLX raise on files that do not fit them.
_LOAD_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, IndexError)


def load(
    files: ModelFiles, config: ModelConfig, device: Device, words: LoadedTokenizer
) -> LoadedModel:
    """Raises ModelError where files are missing, damaged or do not fit together."""
    module = _module(files, config)
    note = precision.apply(module, config.dtype, device)
    _read_weights(module, files)
    return LoadedModel(
        name=files.name,
        identity=files.identity,
        module=module,
        tokenizer=words,
        context_length=files.context_length,
        dtype=precision.name_of(module),
        weights_bytes=precision.weights_bytes(module),
        notes=files.notes if note is None else (*files.notes, note),
    )


def require_implementation(files: ModelFiles, config: ModelConfig) -> None:
    """Raise ModelError unless mlx-lm, or the model's own code where trusted, can run it."""
    code = files.config.get("model_file")
    if code is not None:
        if not config.trust_remote_code:
            raise ModelError(
                f"{files.name} brings its own code ({code}); --trust-remote-code lets it run"
            )
        return
    kind = files.config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{files.name}: config.json names no model_type; fetch the model again")
    if _is_implemented(MODEL_REMAPPING.get(kind, kind)):
        return
    if "vision_config" in files.config:
        raise ModelError(
            f"{files.name} is a vision model ({kind}), which batchrun does not run yet;"
            " choose a text model"
        )
    raise ModelError(
        f"{files.name}: mlx-lm {importlib.metadata.version('mlx-lm')} does not run model type"
        f" {kind}; upgrade mlx-lm or choose another model"
    )


def _is_implemented(kind: str) -> bool:
    is_name = kind.replace("-", "_").isidentifier()  # a dotted name would import more
    return is_name and importlib.util.find_spec(f"mlx_lm.models.{kind}") is not None


def _module(files: ModelFiles, config: ModelConfig) -> nn.Module:
    """The model with its adapter, weights not read yet."""
    if not any(files.path.glob("model*.safetensors")):
        raise ModelError(
            f"{files.name} has no model*.safetensors; convert it with"
            f" `mlx_lm.convert --hf-path {files.path}`"
        )
    try:
        module, _ = load_model(files.path, lazy=True, trust_remote_code=config.trust_remote_code)
    except _LOAD_ERRORS as error:
        raise _does_not_fit(files, error) from error
    if files.adapter is not None:
        module = _with_adapter(module, files.adapter)
    return module


def _with_adapter(module: nn.Module, adapter: Path) -> nn.Module:
    try:
        module = load_adapters(module, str(adapter))
    except _LOAD_ERRORS as error:
        raise ModelError(
            f"adapter {adapter} does not fit the model ({_one_line(error)});"
            " give the model that it was trained on"
        ) from error
    module.eval()  # or the adapter's dropout stays on
    return module


def _read_weights(module: nn.Module, files: ModelFiles) -> None:
    try:
        mx.eval(module.parameters())
    except RuntimeError as error:
        raise ModelError(
            f"{files.name}: the weights cannot be read ({_one_line(error)});"
            " fetch the model again, or take a smaller one if memory ran out"
        ) from error
    mx.clear_cache()


def _does_not_fit(files: ModelFiles, error: Exception) -> ModelError:
    return ModelError(
        f"{files.name}: config.json and weights cannot be loaded together ({_one_line(error)});"
        " fetch the model again, or convert it with a newer mlx-lm"
    )


def _one_line(error: Exception) -> str:
    return shorten(str(error), 200, placeholder=" ...")
