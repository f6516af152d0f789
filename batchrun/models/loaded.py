"""What loading a model gives, of whichever family it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchrun.models.tokenizer import LoadedTokenizer

if TYPE_CHECKING:
    import mlx.nn as nn


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run in the thread that loaded it.

    `module(tokens, cache=caches)` takes tokens [B, L] int32 and returns logits [B, L, V]; `caches`
    is what `make_cache` returns, one per layer, for one sequence. `dtype` is the floating format
    of most parameters. `notes` are lines to tell the user.
    """

    name: str
    identity: str
    module: nn.Module
    tokenizer: LoadedTokenizer
    context_length: int | None
    dtype: str
    weights_bytes: int
    notes: tuple[str, ...]

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self.tokenizer.eos_token_ids

    def make_cache(self) -> list[Any]:
        from mlx_lm.models.cache import make_prompt_cache

        return list(make_prompt_cache(self.module))
