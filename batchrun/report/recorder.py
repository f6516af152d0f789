"""What the report's page draws: recorded while the run goes on, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from batchrun.records import Completion, Result
from batchrun.report.histogram import Histogram
from batchrun.report.history import History
from batchrun.report.samples import Samples, WrongAnswers


class Recorder:
    """Sees every answer that this run computed, and the engine's totals as time goes on."""

    def __init__(self) -> None:
        self.history = History()
        self._latency = Histogram(2.0**-10)
        self._prompt_tokens = Histogram(1)
        self._completion_tokens = Histogram(1)
        self._samples = Samples()
        self._wrong = WrongAnswers()

    def finished(self, completion: Completion) -> None:
        """One choice of a row is done."""
        self._latency.add(completion.seconds)
        self._prompt_tokens.add(completion.prompt.num_tokens)
        self._completion_tokens.add(len(completion.token_ids))
        self._samples.add(completion)

    def wrong_among(self, results: Iterable[Result], expected: str) -> Iterator[Result]:
        """`results` as they are, of which some wrong ones are remembered; `expected` is the kept
        column that they were judged by."""
        for result in results:
            self._wrong.add(result, expected)
            yield result

    def to_dict(self) -> dict[str, Any]:
        """JSON's own types only; None for what there was nothing of."""
        return {
            "history": self.history.to_dict(),
            "latency": self._latency.to_dict(),
            "prompt_tokens": self._prompt_tokens.to_dict(),
            "completion_tokens": self._completion_tokens.to_dict(),
            "samples": self._samples.to_list(),
            "wrong": self._wrong.to_list(),
        }
