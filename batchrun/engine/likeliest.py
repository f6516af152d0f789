"""The likeliest tokens of a distribution."""

from __future__ import annotations

import mlx.core as mx

# OpenAI's most. The likeliest are always cut off here, whatever rows ask for, so that which of
# two equal ones counts does not depend on neighbours.
MAX_TOP_LOGPROBS = 20


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
