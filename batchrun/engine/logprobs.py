"""Log-probabilities of tokens, and of the likeliest ones."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from batchrun.engine import fastmath
from batchrun.engine.row import Sequence

# OpenAI's most. The likeliest are always cut off here, whatever rows ask for, so that which of
# two equal ones counts does not depend on neighbours.
MAX_TOP_LOGPROBS = 20


# Numbers that are added up one after the other: a whole vocabulary's small ones would get lost.
_BLOCK = 256


def log_total(logits: mx.array) -> mx.array:
    """The logarithm of the sum of e^logits over the vocabulary: float32 (..., 1)."""
    peak = mx.max(logits, axis=-1, keepdims=True)
    weights = fastmath.exp_below(logits, peak)
    whole = weights.shape[-1] // _BLOCK * _BLOCK
    blocks = weights[..., :whole].reshape(*weights.shape[:-1], -1, _BLOCK)
    total = mx.sum(mx.sum(blocks, axis=-1), axis=-1, keepdims=True)
    return peak + mx.log(total + mx.sum(weights[..., whole:], axis=-1, keepdims=True))


def likeliest(logprobs: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids and values (..., count) of the `count` largest of `logprobs` (..., vocabulary), in
    falling order."""
    if not count:  # sorting a vocabulary takes longer than all the rest
        nothing = mx.zeros((*logprobs.shape[:-1], 0))
        return nothing, nothing
    cut = min(MAX_TOP_LOGPROBS, logprobs.shape[-1])
    ids = mx.argpartition(-logprobs, kth=cut - 1, axis=-1)[..., :cut]
    order = mx.argsort(-mx.take_along_axis(logprobs, ids, axis=-1), axis=-1)
    top_ids = mx.take_along_axis(ids, order, axis=-1)[..., :count]
    return top_ids, mx.take_along_axis(logprobs, top_ids, axis=-1)


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Log-probabilities of the rows that asked for them: `rows` are their places in the batch,
    `chosen` (rows,) is that of the token taken; `top_ids` and `top` (rows, k) are the likeliest."""

    rows: list[int]
    chosen: mx.array
    top_ids: mx.array
    top: mx.array


class Scores:
    """Log-probabilities under the model's own distribution."""

    def __init__(self, places: list[tuple[int, Sequence]], vocab_size: int):
        self._rows = [place for place, _ in places]
        self._places = mx.array(self._rows)
        asked = max(row.prompt.sampling.top_logprobs for _, row in places)
        self._num_top = min(asked, vocab_size)

    @classmethod
    def of(cls, places: list[tuple[int, Sequence]], vocab_size: int) -> Scores | None:
        scored = [(place, row) for place, row in places if row.prompt.sampling.logprobs]
        return cls(scored, vocab_size) if scored else None

    def of_tokens(self, tokens: mx.array, raw: mx.array) -> ScoredTokens:
        rows = raw[self._places]
        logprobs = rows - log_total(rows)
        chosen = mx.take_along_axis(logprobs, tokens[self._places][:, None], axis=-1)[:, 0]
        top_ids, top = likeliest(logprobs, self._num_top)
        return ScoredTokens(self._rows, chosen, top_ids, top)
