"""Log-probabilities in the forms that are kept: OpenAI's of an answer, vLLM's of a prompt."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from batchrun.engine.finishing import Decoder
from batchrun.records import Completion, TokenLogprob


class ScoreWriter:
    """Names tokens with `decoder`."""

    def __init__(self, decoder: Decoder):
        self._decoder = decoder

    def logprobs(self, completion: Completion) -> list[dict[str, Any]] | None:
        """OpenAI's "content" list; of the prompt too where that is repeated."""
        if completion.logprobs is None:
            return None
        return [*self._echoed(completion), *map(self._entry, completion.logprobs)]

    def prompt_logprobs(self, completion: Completion) -> list[dict[str, Any] | None] | None:
        """vLLM's list: an object for each token of the prompt by token id, None for the first."""
        request, scores = completion.prompt.request, completion.prompt_scores
        if scores is None or request.echo or completion.prompt.continuation:
            return None
        return [None, *map(self._by_id, scores)]

    def _echoed(self, completion: Completion) -> Iterable[dict[str, Any]]:
        if not completion.prompt.request.echo or completion.prompt_scores is None:
            return
        first = self._text(completion.prompt.token_ids[0])
        yield {"token": first, "logprob": None, "bytes": list(first.encode()), "top_logprobs": []}
        yield from map(self._entry, completion.prompt_scores)

    def _entry(self, score: TokenLogprob) -> dict[str, Any]:
        """One entry of OpenAI's logprobs."""
        top = [self._named(token_id, logprob) for token_id, logprob in score.top]
        return {**self._named(score.token_id, score.logprob), "top_logprobs": top}

    def _named(self, token_id: int, logprob: float) -> dict[str, Any]:
        token = self._text(token_id)
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    def _by_id(self, score: TokenLogprob) -> dict[str, Any]:
        likeliest = enumerate(score.top, start=1)
        entries = {token_id: (logprob, rank) for rank, (token_id, logprob) in likeliest}
        entries.setdefault(score.token_id, (score.logprob, score.rank))
        return {
            str(token_id): {
                "logprob": logprob,
                "rank": rank,
                "decoded_token": self._text(token_id),
            }
            for token_id, (logprob, rank) in entries.items()
        }

    def _text(self, token_id: int) -> str:
        return self._decoder.decode([token_id], skip_special_tokens=False)


def continuation_logprob(completion: Completion) -> float | None:
    """Of the whole continuation, where that is what was asked for."""
    scores = completion.prompt_scores
    if scores is None or not completion.prompt.continuation:
        return None
    return math.fsum(score.logprob for score in scores)


def is_greedy(completion: Completion) -> bool | None:
    """Whether greedy decoding would have written the continuation."""
    scores = completion.prompt_scores
    if scores is None or not completion.prompt.continuation:
        return None
    return all(score.rank == 1 for score in scores)
