"""What loading a model gives, of whichever family it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchrun.models.tokenizer import LoadedTokenizer

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Features:
    """What a medium's tokens are to the language model: `embeds` (tokens, hidden size). Those that
    stand for pixels are `is_visual` (tokens,); `deepstack` (layers, visual tokens, hidden size) is
    what some models add to these in their first layers."""

    embeds: mx.array
    is_visual: npt.NDArray[np.bool_]
    deepstack: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """What a model is given besides tokens (B, L) where these do not say everything.

    `embeds` (B, L, hidden size) stand in for the tokens' own. `positions` (3, B, L) are M-RoPE's.
    `visual_mask` (B, L) says which tokens `deepstack` (layers, N, hidden size) is added to, row
    after row.
    """

    embeds: mx.array | None = None
    positions: mx.array | None = None
    visual_mask: mx.array | None = None
    deepstack: mx.array | None = None


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

    @property
    def takes_positions(self) -> bool:
        return False

    def __call__(
        self,
        tokens: mx.array,
        cache: list[Any],
        given: Given | None = None,  # noqa: ARG002 a text model is told by its tokens alone
    ) -> mx.array:
        logits: mx.array = self.module(tokens, cache=cache)
        return logits

    def make_cache(self) -> list[Any]:
        from mlx_lm.models.cache import make_prompt_cache

        return list(make_prompt_cache(self.module))

    def modules(self) -> list[nn.Module]:
        """Every part of the model, itself included."""
        return list(self.module.modules())
