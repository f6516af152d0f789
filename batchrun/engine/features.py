"""What images and videos are to the language model, computed once and kept for when they recur."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from batchrun.engine.kv import Model
from batchrun.engine.stats import EngineStats
from batchrun.records import Media, MediaSpan

if TYPE_CHECKING:
    from batchrun.models.loaded import Features

# Features are some kilobytes a token: enough for hundreds of images. What is kept for a small model
# is not to outgrow it in a run over many.
MAX_BYTES = 512 << 20
LEAST_BYTES = 4 << 20

# Pixels that go through the vision tower in one call: more would gain nothing and take memory.
CALL_BYTES = 16 << 20


class VisionModel(Model, Protocol):
    """A model whose prompts may have images and videos."""

    def embed(self, tokens: mx.array) -> mx.array:
        """The tokens' own embeddings: (rows, tokens) to (rows, tokens, hidden size)."""

    def encode(self, media: list[Media]) -> list[Features]:
        """The features of each medium, from its pixels alone."""

    def positions(
        self, token_ids: list[int], media: tuple[MediaSpan, ...]
    ) -> npt.NDArray[np.int32]:
        """M-RoPE positions of a prompt, (3, tokens)."""


def seeing(model: Model) -> VisionModel:
    """`model` as one that takes media: no other is given prompts with any."""
    return cast(VisionModel, model)


def bytes_to_keep(model: Model) -> int:
    """Bytes of features to keep for `model`: as many as its weights have, within bounds."""
    parts = (part for module in model.modules() for part in module.values())
    weights = sum(part.nbytes for part in parts if isinstance(part, mx.array))
    return min(max(weights, LEAST_BYTES), MAX_BYTES)


class FeatureCache:
    """The features of the latest media, `max_bytes` of them. `upcoming` are the media of prompts
    that wait: they go along when others have to be encoded, as one call is quicker than many."""

    def __init__(
        self,
        model: Model,
        stats: EngineStats,
        upcoming: Callable[[], Iterable[Media]],
        max_bytes: int,
    ):
        self._model = model
        self._stats = stats
        self._upcoming = upcoming
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Features] = OrderedDict()
        self._bytes = 0

    def of(self, media: Iterable[Media]) -> dict[bytes, Features]:
        """The features of `media`, by digest; what is not at hand is computed."""
        wanted = {medium.digest: medium for medium in media}
        found = {digest: self._kept[digest] for digest in wanted if digest in self._kept}
        for digest in found:
            self._kept.move_to_end(digest)
        missing = {digest: wanted[digest] for digest in wanted if digest not in found}
        if missing:
            self._add_upcoming(missing)
        for call in _calls(missing.values()):
            for medium, features in zip(call, self._encoded(call), strict=True):
                found[medium.digest] = features
                self._keep(medium.digest, features)
        return found

    def _add_upcoming(self, missing: dict[bytes, Media]) -> None:
        """Fill up the call."""
        nbytes = sum(medium.nbytes for medium in missing.values())
        for medium in self._upcoming():
            if medium.digest in missing or medium.digest in self._kept:
                continue
            nbytes += medium.nbytes
            if nbytes > CALL_BYTES:
                return
            missing[medium.digest] = medium

    def _encoded(self, media: list[Media]) -> list[Features]:
        encoded = seeing(self._model).encode(media)
        mx.eval([_arrays(features) for features in encoded])
        self._stats.media_encoded += len(media)
        return encoded

    def _keep(self, digest: bytes, features: Features) -> None:
        self._kept[digest] = features
        self._bytes += _nbytes(features)
        while self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _nbytes(oldest)


def _calls(media: Iterable[Media]) -> Iterator[list[Media]]:
    """`media` in lists of up to CALL_BYTES each; one alone may be larger."""
    call: list[Media] = []
    for medium in media:
        if call and sum(other.nbytes for other in call) + medium.nbytes > CALL_BYTES:
            yield call
            call = []
        call.append(medium)
    if call:
        yield call


def _arrays(features: Features) -> list[mx.array]:
    deepstack = [] if features.deepstack is None else [features.deepstack]
    return [features.embeds, *deepstack]


def _nbytes(features: Features) -> int:
    return sum(array.nbytes for array in _arrays(features))
