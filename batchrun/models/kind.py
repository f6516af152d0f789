"""Whether a model is run as text, by mlx-lm, or with its eyes open, by mlx-vlm.

The only place that decides it: by what the model's config declares and what the libraries
implement, never by a name.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from enum import Enum, auto

from batchrun.config import ModelConfig
from batchrun.errors import ModelError
from batchrun.models.locate import ModelFiles
from batchrun.models.tokenizer import quieten

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


class Kind(Enum):
    """TEXT: mlx-lm's class. VISION: mlx-vlm's, with a processor. LANGUAGE: the language part alone
    of mlx-vlm's, for what mlx-lm does not implement."""

    TEXT = auto()
    VISION = auto()
    LANGUAGE = auto()


def of(files: ModelFiles, config: ModelConfig) -> Kind:
    """Raises ModelError where neither library can run the model, or its own code is not trusted."""
    code = files.config.get("model_file")
    if code is not None:
        if not config.trust_remote_code:
            raise ModelError(
                f"{files.name} brings its own code ({code}); --trust-remote-code lets it run"
            )
        return Kind.TEXT
    name = files.config.get("model_type")
    if not isinstance(name, str):
        raise ModelError(f"{files.name}: config.json names no model_type; fetch the model again")
    if is_vision(files, config):
        return Kind.VISION
    if in_mlx_lm(name):
        return Kind.TEXT
    if _mlx_vlm_runs(files):
        return Kind.LANGUAGE
    raise ModelError(
        f"{files.name}: neither mlx-lm {importlib.metadata.version('mlx-lm')} nor mlx-vlm"
        f" {importlib.metadata.version('mlx-vlm')} runs model type {name}; upgrade them or choose"
        " another model"
    )


def is_vision(files: ModelFiles, config: ModelConfig) -> bool:
    """Whether images and videos can be given to the model, and are not ruled out by `config`."""
    name = files.config.get("model_type")
    if config.text_only or "model_file" in files.config or not isinstance(name, str):
        return False
    if not files.config.get("vision_config"):  # some architectures keep it under other names
        has_processor = any((files.path / file).exists() for file in _PROCESSOR_FILES)
        if not has_processor or in_mlx_lm(name):
            return False
    return _mlx_vlm_runs(files)


def in_mlx_lm(name: str) -> str | None:
    """The module of mlx-lm that has models of type `name`."""
    quieten()
    from mlx_lm.utils import MODEL_REMAPPING

    return _module("mlx_lm.models", MODEL_REMAPPING.get(name, name))


def _mlx_vlm_runs(files: ModelFiles) -> bool:
    quieten()
    from mlx_vlm.utils import get_model_type

    name = get_model_type(files.config)
    return name is not None and _module("mlx_vlm.models", name) is not None


def _module(package: str, name: str) -> str | None:
    """`name` in `package`, if it is there."""
    is_name = name.replace("-", "_").isidentifier()  # a dotted name would import more
    module = f"{package}.{name}"
    return module if is_name and importlib.util.find_spec(module) is not None else None
