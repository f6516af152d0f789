"""Finds, reads and loads models; the only place that decides between text and vision.

`locate` needs no weights and no MLX, `load_tokenizer` no weights. Knows nothing of rows.
"""

from __future__ import annotations

from batchrun.config import ModelConfig
from batchrun.device import Device
from batchrun.models import tokenizer
from batchrun.models.loaded import LoadedModel
from batchrun.models.locate import ModelFiles, locate
from batchrun.models.tokenizer import LoadedTokenizer

__all__ = ["LoadedModel", "LoadedTokenizer", "ModelFiles", "load", "load_tokenizer", "locate"]


def load_tokenizer(files: ModelFiles, config: ModelConfig) -> LoadedTokenizer:
    """The model's tokenizer with its chat template. Raises UsageError, ModelError."""
    return tokenizer.load(files, config)


def load(
    files: ModelFiles, config: ModelConfig, device: Device, words: LoadedTokenizer | None = None
) -> LoadedModel:
    """The model with its weights in memory, in the thread that will run it. Raises ModelError.

    `words` is its tokenizer where that is loaded already. What a model is follows from its config:
    whatever mlx-lm implements runs as text.
    """
    from batchrun.models import text

    text.require_implementation(files, config)
    return text.load(files, config, device, words or load_tokenizer(files, config))
