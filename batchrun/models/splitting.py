"""A model split over several ranks, by mlx-lm's own tensor parallelism: of every layer each has its
share of the attention heads and of the MLP, and the sums over them go from rank to rank."""

from __future__ import annotations

import importlib

import mlx.nn as nn

from batchrun.errors import ModelError
from batchrun.models.kind import Kind, in_mlx_lm
from batchrun.models.locate import ModelFiles
from batchrun.ranks import Ranks

# What architectures name the heads of which every rank gets its share.
_HEADS = (
    "num_attention_heads",
    "num_key_value_heads",
    "num_attention_groups",
    "linear_num_key_heads",
    "linear_num_value_heads",
)


def check(files: ModelFiles, kind: Kind, size: int) -> None:
    """Raises ModelError where a model of this `kind` cannot be split over `size` ranks, as far as
    its config tells."""
    if not _has_shard(files):
        raise ModelError(
            f"{files.name}: mlx-lm cannot split models of type {files.config.get('model_type')}"
            " over ranks; run it without mlx.launch, or choose another"
        )
    if kind is not Kind.TEXT:
        raise ModelError(
            f"{files.name} sees images, which models that are split over ranks cannot: give"
            " --text-only, or run it without mlx.launch"
        )
    if files.adapter is not None:
        raise ModelError(
            f"adapter {files.adapter}: adapters are not split over ranks; make one model of both"
            " with `mlx_lm.fuse`"
        )
    _check_heads(files, size)


def split(module: nn.Module, files: ModelFiles, ranks: Ranks) -> str | None:
    """Leave of `module`, whose weights are not in memory yet, this rank's part; returns a note, or
    None where there is one rank only. Raises ModelError."""
    if not ranks.are_many:
        return None
    try:
        module.shard(ranks.group)
    except (AssertionError, AttributeError, ValueError) as error:
        raise ModelError(
            f"{files.name} cannot be split over {ranks.size} ranks ({error})"
        ) from error
    return f"the model is split over {ranks.size} ranks"


def _has_shard(files: ModelFiles) -> bool:
    """Whether the model's class, which may come with it, has mlx-lm's `shard`."""
    if "model_file" in files.config:
        return True  # split() will see
    module = in_mlx_lm(files.config["model_type"])
    return module is not None and hasattr(importlib.import_module(module).Model, "shard")


def _check_heads(files: ModelFiles, size: int) -> None:
    """`shard` would round heads down, and some models then run on with the wrong ones."""
    inner = files.config.get("text_config")
    config = files.config | (inner if isinstance(inner, dict) else {})
    for name in _HEADS:
        heads = config.get(name)
        # Latent attention has no KV heads to split.
        if name == "num_key_value_heads" and "kv_lora_rank" in config:
            continue
        if isinstance(heads, int) and heads % size:
            raise ModelError(
                f"{files.name} cannot be split over {size} ranks: its {heads} heads ({name}) are"
                " not a multiple of that"
            )
