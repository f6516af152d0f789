"""What loading a model gives, of whichever family it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchrun.models.tokenizer import LoadedTokenizer

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run in the thread that loaded it.

    Called with tokens [B, L] int32 and caches it returns logits [B, L, V]; caches are what
    `make_cache` returns, one per layer, for one sequence. `dtype` is the floating format of most
    parameters. `notes` are lines to tell the user.
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

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        logits: mx.array = self.module(tokens, cache=cache)
        return logits

    def make_cache(self) -> list[Any]:
        from mlx_lm.models.cache import make_prompt_cache

        return list(make_prompt_cache(self.module))

    def modules(self) -> list[nn.Module]:
        """Every part of the model, itself included."""
        return list(self.module.modules())
