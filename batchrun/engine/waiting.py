"""Answers that wait for what else their prompt asks for: the scores of given tokens."""

from __future__ import annotations

from dataclasses import replace

from batchrun.records import Completion, FinishReason, Prompt, TokenLogprob


class PromptScores:
    """The answers of one prompt, until its tokens are scored. Where none is written, the scores are
    all that is handed out."""

    def __init__(self, prompt: Prompt):
        self._prompt = prompt
        self._answers: list[Completion] = []
        self._scores: list[TokenLogprob] | None = None

    def answered(self, completion: Completion) -> list[Completion]:
        """An answer is written. Returns what can be handed out by now."""
        self._answers.append(completion)
        return self._release()

    def scored(self, scores: list[TokenLogprob], by: Completion) -> list[Completion]:
        """The tokens have their `scores`; `by` tells what these took. Returns what can be handed
        out by now."""
        self._scores = scores
        if self._prompt.sampling.max_tokens == 0:
            self._answers = [self._nothing(choice, by) for choice in range(self._prompt.sampling.n)]
        return self._release()

    def _nothing(self, choice: int, by: Completion) -> Completion:
        reason: FinishReason = "stop" if self._prompt.continuation else "length"
        return replace(by, prompt=self._prompt, choice=choice, finish_reason=reason)

    def _release(self) -> list[Completion]:
        if self._scores is None:
            return []
        done, self._answers = self._answers, []
        return [replace(completion, prompt_scores=self._scores) for completion in done]
