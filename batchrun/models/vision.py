"""Vision models through mlx-vlm: weights in memory; images to embeddings, tokens to logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.models import cache as mlx_lm_cache
from mlx_vlm.models import cache as mlx_vlm_cache
from mlx_vlm.trainer.peft.utils import apply_lora_layers
from mlx_vlm.utils import load_model

from batchrun.config import ModelConfig
from batchrun.device import Device
from batchrun.errors import ModelError
from batchrun.models import layout, patches, precision, weights
from batchrun.models.encoder import Encoder
from batchrun.models.loaded import Features, Given, LoadedModel
from batchrun.models.locate import ModelFiles
from batchrun.models.tokenizer import LoadedTokenizer
from batchrun.records import Media, MediaSpan

_LANGUAGE = "language_model"
_GRIDS = ("image_grid_thw", "video_grid_thw")
_MAX_LAYOUTS = 512


@runtime_checkable
class _TakesPositions(Protocol):
    """A language part with M-RoPE, whose positions do not follow from the tokens alone."""

    def get_rope_index(
        self,
        input_ids: mx.array,
        image_grid_thw: mx.array | None,
        video_grid_thw: mx.array | None,
    ) -> tuple[mx.array, mx.array]: ...


@dataclass(frozen=True, slots=True)
class VisionModel(LoadedModel):
    """`module` is mlx-vlm's: a language part that is run as any model is, and the way from pixels
    to its embeddings."""

    encoder: Encoder
    # By where media lie in a prompt and their grids: many prompts are alike in that.
    known_positions: dict[tuple[Any, ...], npt.NDArray[np.int32]] = field(default_factory=dict)

    @property
    def language(self) -> nn.Module:
        return self.module[_LANGUAGE]

    @property
    def takes_positions(self) -> bool:
        return isinstance(self.language, _TakesPositions)

    def __call__(self, tokens: mx.array, cache: list[Any], given: Given | None = None) -> mx.array:
        output = self.language(tokens, cache=cache, **_named(given or Given()))
        logits: mx.array = output.logits
        return logits

    def make_cache(self) -> list[Any]:
        """mlx-lm's classes where mlx-vlm has its own of the same kind."""
        return [_as_mlx_lm(cache) for cache in mlx_vlm_cache.make_prompt_cache(self.language)]

    def embed(self, tokens: mx.array) -> mx.array:
        """The tokens' own embeddings: (B, L) to (B, L, hidden size)."""
        embeds: mx.array = self.module.get_input_embeddings(tokens, None).inputs_embeds
        self._forget()
        return embeds

    def encode(self, media: list[Media]) -> list[Features]:
        """What each medium's tokens are to the language part. Raises ValueError where the model
        has more to say of an image than its embeddings."""
        features = self.encoder.encode(media)
        self._forget()
        return features

    def positions(
        self, token_ids: list[int], media: tuple[MediaSpan, ...]
    ) -> npt.NDArray[np.int32]:
        """M-RoPE positions of a prompt, (3, tokens)."""
        head = media[-1].end if media else 0
        layout = tuple((span.start, span.end, *_grid_sizes(span.media)) for span in media)
        if layout not in self.known_positions:
            if len(self.known_positions) >= _MAX_LAYOUTS:
                self.known_positions.clear()
            self.known_positions[layout] = self._positions_of_media(token_ids[:head], media)
        known = self.known_positions[layout]
        # Text goes on from the largest position so far, in all three.
        start = int(known.max()) + 1 if head else 0
        text = np.arange(start, start + len(token_ids) - head, dtype=np.int32)
        return np.concatenate([known, np.broadcast_to(text, (3, len(text)))], axis=1)

    def _positions_of_media(
        self, token_ids: list[int], media: tuple[MediaSpan, ...]
    ) -> npt.NDArray[np.int32]:
        """By the model's own rule, up to the end of the last medium."""
        if not media:
            return np.zeros((3, 0), dtype=np.int32)
        language = self.language
        assert isinstance(language, _TakesPositions)
        grids = (_grids(media, name) for name in _GRIDS)
        positions, _ = language.get_rope_index(mx.array([token_ids]), *grids)
        self._forget()
        found = np.array(positions, dtype=np.int32)
        return np.broadcast_to(found.reshape(-1, len(token_ids)), (3, len(token_ids)))

    def _forget(self) -> None:
        """Rows come and go, so a model must not remember one's positions."""
        language: Any = self.language
        language._position_ids = language._rope_deltas = None


def load(
    files: ModelFiles, config: ModelConfig, device: Device, words: LoadedTokenizer, *, sees: bool
) -> VisionModel:
    """Not `sees` leaves all but the language part out of memory. Raises ModelError where files are
    missing, damaged or do not fit together."""
    trust = config.trust_remote_code
    module = weights.module(
        files,
        "mlx-vlm",
        load=lambda path: load_model(path, lazy=True, trust_remote_code=trust),
        adapt=apply_lora_layers,
    )
    if _LANGUAGE not in module:
        raise ModelError(f"{files.name} is not a model that answers in text; choose another")
    if not sees:
        _keep_language_only(module)
    note = precision.apply(module, config.dtype, device)
    layout.apply(module, device)
    weights.read(module, files)
    patches.install(module)
    return VisionModel(
        name=files.name,
        identity=files.identity,
        module=module,
        tokenizer=words,
        context_length=files.context_length,
        dtype=precision.name_of(module),
        weights_bytes=precision.weights_bytes(module),
        notes=files.notes if note is None else (*files.notes, note),
        encoder=Encoder(module),
    )


def _keep_language_only(module: nn.Module) -> None:
    """Weights that nothing refers to are never read."""
    for name, part in list(module.items()):
        if name != _LANGUAGE and isinstance(part, nn.Module):
            setattr(module, name, None)


def _as_mlx_lm(cache: Any) -> Any:
    if type(cache) is mlx_vlm_cache.KVCache:
        return mlx_lm_cache.KVCache()
    if type(cache) is mlx_vlm_cache.RotatingKVCache:
        return mlx_lm_cache.RotatingKVCache(max_size=cache.max_size, keep=cache.keep)
    return cache


def _named(given: Given) -> dict[str, mx.array]:
    """`given` under the names that mlx-vlm's language parts take it by."""
    named = {
        "inputs_embeds": given.embeds,
        "position_ids": given.positions,
        "visual_pos_masks": given.visual_mask,
        "deepstack_visual_embeds": given.deepstack,
    }
    return {name: array for name, array in named.items() if array is not None}


def _grid_sizes(media: Media) -> Iterator[bytes]:
    for name in _GRIDS:
        if name in media.inputs:
            yield name.encode() + media.inputs[name].tobytes()


def _grids(media: tuple[MediaSpan, ...], name: str) -> mx.array | None:
    grids = [span.media.inputs[name] for span in media if name in span.media.inputs]
    return mx.array(np.concatenate(grids)) if grids else None
