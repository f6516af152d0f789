"""A model split over several ranks, by mlx-lm's own tensor parallelism: of every layer each has its
share of the attention heads and of the MLP, and the sums over them go from rank to rank."""

from __future__ import annotations

import mlx.nn as nn

from batchrun.errors import ModelError
from batchrun.models.locate import ModelFiles
from batchrun.ranks import Ranks


def split(module: nn.Module, files: ModelFiles, ranks: Ranks) -> str | None:
    """Leave of `module`, whose weights are not in memory yet, this rank's part; returns a note, or
    None where there is one rank only. Raises ModelError."""
    if not ranks.are_many:
        return None
    # mlx-lm's own, which not every architecture has.
    shard = getattr(module, "shard", None)
    if shard is None:
        kind = files.config.get("model_type")
        raise ModelError(
            f"{files.name}: mlx-lm cannot split models of type {kind} over ranks; run it without"
            " mlx.launch, or choose another"
        )
    _check_heads(files, ranks.size)
    try:
        shard(ranks.group)
    except ValueError as error:
        raise ModelError(
            f"{files.name} cannot be split over {ranks.size} ranks ({error})"
        ) from error
    return f"the model is split over {ranks.size} ranks"


def _check_heads(files: ModelFiles, size: int) -> None:
    """`shard` would round heads down, and some models then run on with the wrong ones."""
    names = ["num_attention_heads"]
    if "kv_lora_rank" not in files.config:  # latent attention has no KV heads to split
        names.append("num_key_value_heads")
    inner = files.config.get("text_config")
    for name in names:
        for config in (files.config, inner if isinstance(inner, dict) else {}):
            heads = config.get(name)
            if isinstance(heads, int) and heads % size:
                raise ModelError(
                    f"{files.name} cannot be split over {size} ranks: its {heads} heads"
                    f" ({name}) are not a multiple of that"
                )
