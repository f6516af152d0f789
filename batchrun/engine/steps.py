"""Decode steps over the rows that run: each is started, and read before or after the next is."""

from __future__ import annotations

import time

from batchrun.engine import batch as decoding
from batchrun.engine.batch import Batch, Step
from batchrun.engine.kv import CacheTraits, Model
from batchrun.engine.outcomes import Outcomes
from batchrun.engine.row import Sequence
from batchrun.engine.stats import EngineStats
from batchrun.ranks import Ranks


class Steps:
    """`batch` is of the rows that run, at most `max_rows` at first. One step over them may be in
    flight; what it gives goes to `outcomes`."""

    def __init__(
        self,
        model: Model,
        vocab_size: int,
        caches: CacheTraits,
        outcomes: Outcomes,
        stats: EngineStats,
        max_rows: int,
        ranks: Ranks,
    ):
        self._model = model
        self._ranks = ranks
        self._vocab_size = vocab_size
        self._caches = caches
        self._outcomes = outcomes
        self._stats = stats
        self._in_flight: Step | None = None
        self.batch = self._new_batch(max_rows)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, and nothing is left to read."""
        return not (self._in_flight or self.batch.rows)

    @property
    def sequences(self) -> list[Sequence]:
        """Those that run, or did when the step in flight was started; some may come twice."""
        in_flight = self._in_flight.rows if self._in_flight else []
        return [row for row in (*in_flight, *self.batch.rows) if row is not None]

    def restart(self, max_rows: int) -> None:
        """Forget all rows."""
        self._in_flight = None
        self.batch = self._new_batch(max_rows)

    def launch(self, num_joining: int) -> None:
        """Start a step; `num_joining` sequences are on their way into the batch."""
        self._in_flight = self._launched(num_joining)

    def decode(self) -> int:
        """One step over the same rows as the last; returns the tokens that the last one gave."""
        if decoding.OVERLAPS and not self.batch.is_guided:
            step: Step | None = self._launched()
            num_tokens = self.read()
        else:
            if decoding.OVERLAPS:
                self.batch.begin()
            num_tokens = self.read()
            step = self._launched() if decoding.OVERLAPS or self.batch.live else None
        self._in_flight = step
        return num_tokens

    def _launched(self, num_joining: int = 0) -> Step:
        start = time.perf_counter()
        num_running = len(self.batch.live) + num_joining
        self._stats.decode_steps += 1
        self._stats.row_steps += len(self.batch.live)
        self._stats.peak_running = max(self._stats.peak_running, num_running)
        step = self.batch.launch()
        self._stats.decode_seconds += time.perf_counter() - start
        return step

    def read(self) -> int:
        """Take in the tokens of the step in flight, if there is one; returns their number."""
        if self._in_flight is None:
            return 0
        start = time.perf_counter()
        tokens = self._in_flight.read()
        self._in_flight = None
        self._stats.decode_seconds += time.perf_counter() - start
        for taken in tokens:
            self._stats.decode_tokens += taken.sequence.walk is None
            self._outcomes.take(taken)
        return len(tokens)

    def _new_batch(self, max_rows: int) -> Batch:
        return Batch(
            self._model,
            max_rows=max_rows,
            vocab_size=self._vocab_size,
            traits=self._caches,
            ranks=self._ranks,
        )
