"""Text models through mlx-lm: weights in memory, logits out."""

from __future__ import annotations

from mlx_lm.utils import load_adapters, load_model

from batchrun.config import ModelConfig
from batchrun.device import Device
from batchrun.models import layout, precision, weights
from batchrun.models.loaded import LoadedModel
from batchrun.models.locate import ModelFiles
from batchrun.models.splitting import split
from batchrun.models.tokenizer import LoadedTokenizer
from batchrun.ranks import ALONE, Ranks


def load(
    files: ModelFiles,
    config: ModelConfig,
    device: Device,
    words: LoadedTokenizer,
    ranks: Ranks = ALONE,
) -> LoadedModel:
    """The model, or this rank's part of it. Raises ModelError where files are missing, damaged or
    do not fit together."""
    trust = config.trust_remote_code
    module = weights.module(
        files,
        "mlx-lm",
        load=lambda path: load_model(path, lazy=True, trust_remote_code=trust)[0],
        adapt=lambda module, adapter: load_adapters(module, str(adapter)),
    )
    said = (precision.apply(module, config.dtype, device), split(module, files, ranks))
    layout.apply(module, device)
    weights.read(module, files)
    return LoadedModel(
        name=files.name,
        identity=files.identity,
        module=module,
        tokenizer=words,
        context_length=files.context_length,
        dtype=precision.name_of(module),
        weights_bytes=precision.weights_bytes(module),
        notes=(*files.notes, *(note for note in said if note is not None)),
    )
