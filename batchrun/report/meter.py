"""Counts rows and tokens, and sums the time of each phase, while the run goes on.

Rows that an earlier run answered, or that ask the same as another row of this one, count as reused:
no tokens or time of this run are theirs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from batchrun.errors import RowError
from batchrun.records import Request, Row
from batchrun.report.recorder import Recorder

Phase = Literal["load", "prepare", "prefill", "decode", "write"]
PHASES: tuple[Phase, ...] = ("load", "prepare", "prefill", "decode", "write")


# So many models' names are counted; no file that is meant to be run on one has more.
_MODELS = 100


@dataclass(slots=True)
class ErrorCount:
    """How many rows failed with one code, and the first of them."""

    count: int
    row: str
    message: str


class Meter:
    """The running figures of one run. `num_rows` is known once the input is read to its end,
    `expected` by a count ahead of that; None while unknown.

    Counting is for one thread; `phase` may be entered from several at once, and then adds up the
    seconds of all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.num_rows: int | None = None
        self.expected: int | None = None
        self.num_completed = 0
        self.num_reused = 0
        self.num_failed = 0
        self.num_truncated = 0
        self.num_blank = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.finish_reasons: Counter[str] = Counter()
        self.models_named: Counter[str] = Counter()
        self.errors: dict[str, ErrorCount] = {}
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self.started_at = time.time()
        self.recorder = Recorder()
        self._clock = clock
        self._start = clock()
        self._lock = Lock()

    @property
    def total(self) -> int | None:
        """The number of rows as far as it is known."""
        return self.expected if self.num_rows is None else self.num_rows

    @property
    def num_answered(self) -> int:
        """Rows that have an answer, from this run or an earlier one."""
        return self.num_completed + self.num_reused

    @property
    def num_done(self) -> int:
        return self.num_answered + self.num_failed

    @property
    def elapsed(self) -> float:
        """Seconds since the meter was made."""
        return self._clock() - self._start

    def completed(
        self, prompt_tokens: int, cached_tokens: int, completion_tokens: int, *finish_reasons: str
    ) -> None:
        """A row got its answer: the tokens of all its choices, and why each of these ended."""
        self.num_completed += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.completion_tokens += completion_tokens
        self._ended(finish_reasons)

    def reused(self, *finish_reasons: str) -> None:
        """A row's answer was there already: why each of its choices had ended."""
        self.num_reused += 1
        self._ended(finish_reasons)

    def asked(self, request: Request) -> None:
        """A row is to be answered."""
        self.num_blank += request.is_blank
        model = request.model
        if model is not None and (model in self.models_named or len(self.models_named) < _MODELS):
            self.models_named[model] += 1

    def failed(self, error: RowError, row: Row) -> None:
        """A row has no answer."""
        self.num_failed += 1
        first = self.errors.setdefault(error.code, ErrorCount(0, str(row), error.message))
        first.count += 1

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Adds the time spent inside to `seconds[name]`."""
        start = self._clock()
        try:
            yield
        finally:
            spent = self._clock() - start
            with self._lock:
                self.seconds[name] += spent

    def _ended(self, finish_reasons: tuple[str, ...]) -> None:
        self.finish_reasons.update(finish_reasons)
        self.num_truncated += "length" in finish_reasons
