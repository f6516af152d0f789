"""A completion's tokens, text and log-probabilities as an answer's fields."""

from __future__ import annotations

import time

from batchrun.answers.schema import parsed
from batchrun.engine.finishing import Decoder
from batchrun.records import Answer, Completion, TokenLogprob


class AnswerReader:
    """`model` is the name that answers carry; `decoder` turns ids into text."""

    def __init__(self, model: str, decoder: Decoder):
        self._model = model
        self._decoder = decoder

    def read(self, completion: Completion) -> Answer:
        """The answer, finished now."""
        scores = completion.logprobs
        return Answer(
            key=completion.prompt.key,
            choice=completion.choice,
            text=completion.text,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            prompt_tokens=len(completion.prompt.token_ids),
            cached_tokens=completion.cached_tokens,
            disk_tokens=completion.disk_tokens,
            completion_tokens=len(completion.token_ids),
            seconds=completion.seconds,
            model=self._model,
            finished_at=time.time(),
            logprobs=None if scores is None else [self._score(score) for score in scores],
            parsed=parsed(completion),
            choice_probs=_choice_probs(completion),
        )

    def _score(self, score: TokenLogprob) -> dict[str, object]:
        """One entry of OpenAI's logprobs."""
        top = [self._named(token_id, logprob) for token_id, logprob in score.top]
        return {**self._named(score.token_id, score.logprob), "top_logprobs": top}

    def _named(self, token_id: int, logprob: float) -> dict[str, object]:
        token = self._decoder.decode([token_id], skip_special_tokens=False)
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def _choice_probs(completion: Completion) -> dict[str, float] | None:
    if completion.choice_probs is None:
        return None
    texts = [choice.text for choice in completion.prompt.choices]
    return dict(zip(texts, completion.choice_probs, strict=True))
