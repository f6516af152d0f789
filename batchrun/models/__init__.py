"""Finds, reads and loads models; the only place that decides between text and vision.

`locate` needs no weights and no MLX, `load_tokenizer` no weights. Knows nothing of rows.
"""

from __future__ import annotations

from batchrun.config import ModelConfig
from batchrun.device import Device
from batchrun.models import kind, tokenizer
from batchrun.models.kind import Kind
from batchrun.models.loaded import LoadedModel
from batchrun.models.locate import ModelFiles, locate
from batchrun.models.tokenizer import LoadedTokenizer
from batchrun.ranks import ALONE, Ranks

__all__ = [
    "LoadedModel",
    "LoadedTokenizer",
    "ModelFiles",
    "check_split",
    "load",
    "load_tokenizer",
    "locate",
]


def load_tokenizer(files: ModelFiles, config: ModelConfig) -> LoadedTokenizer:
    """The model's tokenizer with its chat template, and the processor of a vision model.
    Raises UsageError, ModelError."""
    if not kind.is_vision(files, config):
        return tokenizer.load(files, config)
    from batchrun.models import processors

    return processors.load(files, config)


def check_split(files: ModelFiles, config: ModelConfig, size: int) -> None:
    """Raises ModelError where the model cannot be split over `size` ranks, as far as that shows
    without its weights."""
    from batchrun.models import splitting

    splitting.check(files, kind.of(files, config), size)


def load(
    files: ModelFiles,
    config: ModelConfig,
    device: Device,
    words: LoadedTokenizer | None = None,
    ranks: Ranks = ALONE,
) -> LoadedModel:
    """The model with its weights in memory, in the thread that will run it; of several `ranks`,
    each has a part. Raises ModelError.

    `words` is its tokenizer where that is loaded already.
    """
    found = kind.of(files, config)
    words = words or load_tokenizer(files, config)
    if found is Kind.TEXT:
        from batchrun.models import text

        return text.load(files, config, device, words, ranks)
    from batchrun.models import vision

    return vision.load(files, config, device, words, sees=found is Kind.VISION)
