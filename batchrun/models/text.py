"""Text models through mlx-lm: weights in memory, logits out."""

from __future__ import annotations

import mlx.nn as nn
from mlx_lm.utils import load_adapters, load_model

from batchrun.config import ModelConfig
from batchrun.device import Device
from batchrun.models import precision, weights
from batchrun.models.loaded import LoadedModel
from batchrun.models.locate import ModelFiles
from batchrun.models.tokenizer import LoadedTokenizer


def load(
    files: ModelFiles, config: ModelConfig, device: Device, words: LoadedTokenizer
) -> LoadedModel:
    """Raises ModelError where files are missing, damaged or do not fit together."""
    module = _module(files, config)
    note = precision.apply(module, config.dtype, device)
    weights.read(module, files)
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


def _module(files: ModelFiles, config: ModelConfig) -> nn.Module:
    """The model with its adapter, weights not read yet."""
    weights.require(files)
    try:
        module, _ = load_model(files.path, lazy=True, trust_remote_code=config.trust_remote_code)
    except weights.LOAD_ERRORS as error:
        raise weights.do_not_fit(files, error, "mlx-lm") from error
    if files.adapter is None:
        return module
    try:
        module = load_adapters(module, str(files.adapter))
    except weights.LOAD_ERRORS as error:
        raise weights.adapter_does_not_fit(files, error) from error
    module.eval()  # or the adapter's dropout stays on
    return module
