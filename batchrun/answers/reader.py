"""A completion's tokens, text and log-probabilities as an answer's fields."""

from __future__ import annotations

import time

from batchrun.answers.parts import PartReader
from batchrun.answers.schema import parsed
from batchrun.answers.scores import ScoreWriter, continuation_logprob, is_greedy
from batchrun.engine.finishing import Decoder
from batchrun.records import Answer, Completion, Dialect


class AnswerReader:
    """`model` is the name that answers carry; `decoder` turns ids into text. Answers to chats are
    written in `dialect`, and `ends` are the tokens that end one."""

    def __init__(
        self,
        model: str,
        decoder: Decoder,
        dialect: Dialect | None = None,
        ends: frozenset[int] = frozenset(),
    ):
        self._model = model
        self._decoder = decoder
        self._scores = ScoreWriter(decoder)
        self._parts = PartReader(dialect or Dialect(), decoder, ends)

    def read(self, completion: Completion) -> Answer:
        """The answer, finished now."""
        parts = self._parts.read(completion)
        return Answer(
            key=completion.prompt.key,
            choice=completion.choice,
            text=self._echoed(completion) + parts.text,
            finish_reason="tool_calls" if parts.calls else completion.finish_reason,
            stop_reason=completion.stop_reason,
            prompt_tokens=completion.prompt.num_tokens,
            cached_tokens=completion.cached_tokens,
            disk_tokens=completion.disk_tokens,
            completion_tokens=len(completion.token_ids),
            seconds=completion.seconds,
            model=self._model,
            finished_at=time.time(),
            logprobs=self._scores.logprobs(completion),
            reasoning=parts.reasoning,
            tool_calls=list(parts.calls) or None,
            parsed=parsed(completion, parts.text),
            choice_probs=_choice_probs(completion),
            prompt_logprobs=self._scores.prompt_logprobs(completion),
            logprob=continuation_logprob(completion),
            is_greedy=is_greedy(completion),
            reasoning_tokens=parts.reasoning_tokens,
        )

    def _echoed(self, completion: Completion) -> str:
        """The prompt's text where that is to be repeated."""
        request = completion.prompt.request
        if not request.echo:
            return ""
        if isinstance(request.prompt, str):
            return request.prompt
        return self._decoder.decode(completion.prompt.token_ids, skip_special_tokens=True)


def _choice_probs(completion: Completion) -> dict[str, float] | None:
    if completion.choice_probs is None:
        return None
    texts = [choice.text for choice in completion.prompt.choices]
    return dict(zip(texts, completion.choice_probs, strict=True))
