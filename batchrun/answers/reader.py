"""A completion's tokens, text and log-probabilities as an answer's fields."""

from __future__ import annotations

import time

from batchrun.answers.schema import parsed
from batchrun.answers.scores import ScoreWriter, continuation_logprob, is_greedy
from batchrun.engine.finishing import Decoder
from batchrun.records import Answer, Completion


class AnswerReader:
    """`model` is the name that answers carry; `decoder` turns ids into text."""

    def __init__(self, model: str, decoder: Decoder):
        self._model = model
        self._decoder = decoder
        self._scores = ScoreWriter(decoder)

    def read(self, completion: Completion) -> Answer:
        """The answer, finished now."""
        return Answer(
            key=completion.prompt.key,
            choice=completion.choice,
            text=self._text(completion),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            prompt_tokens=completion.prompt.num_tokens,
            cached_tokens=completion.cached_tokens,
            disk_tokens=completion.disk_tokens,
            completion_tokens=len(completion.token_ids),
            seconds=completion.seconds,
            model=self._model,
            finished_at=time.time(),
            logprobs=self._scores.logprobs(completion),
            parsed=parsed(completion),
            choice_probs=_choice_probs(completion),
            prompt_logprobs=self._scores.prompt_logprobs(completion),
            logprob=continuation_logprob(completion),
            is_greedy=is_greedy(completion),
        )

    def _text(self, completion: Completion) -> str:
        request = completion.prompt.request
        if not request.echo:
            return completion.text
        prompt = request.prompt
        if not isinstance(prompt, str):
            prompt = self._decoder.decode(completion.prompt.token_ids, skip_special_tokens=True)
        return prompt + completion.text


def _choice_probs(completion: Completion) -> dict[str, float] | None:
    if completion.choice_probs is None:
        return None
    texts = [choice.text for choice in completion.prompt.choices]
    return dict(zip(texts, completion.choice_probs, strict=True))
