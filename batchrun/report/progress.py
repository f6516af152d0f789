"""Shows how far the run is, on stderr: a bar on a terminal, else a line every half minute."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TextIO

from tqdm import tqdm

from batchrun.report.meter import Meter

if TYPE_CHECKING:
    from batchrun.engine.stats import EngineStats

BAR_SECONDS = 0.2
LINE_SECONDS = 30.0
WINDOW_SECONDS = 10.0

_BAR = "{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}] {desc}"
_NO_TOTAL = "{n_fmt} rows [{elapsed}] {desc}"


class _Sample(NamedTuple):
    seconds: float
    prefill_tokens: int
    decode_tokens: int


class Progress:
    """`update` may be called at every turn of the engine: most calls only look at the clock.

    The bar counts the time from the first update, so that loading the model is no part of the ETA.
    `quiet` shows nothing at all. `also` is shown the same.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        also: Progress | None = None,
    ):
        self._also = also
        self._stream = stream or sys.stderr
        self._is_bar = self._stream.isatty()
        self._every = BAR_SECONDS if self._is_bar else LINE_SECONDS
        self._clock = clock
        self._due = float("inf") if quiet else float("-inf")
        self._samples: deque[_Sample] = deque()
        self._bar: _Bar | None = None
        self._start: float | None = None

    def update(self, meter: Meter, stats: EngineStats) -> None:
        if self._also is not None:
            self._also.update(meter, stats)
        now = self._clock()
        if now < self._due:
            return
        self._due = now + self._every
        self._sample(now, stats)
        try:
            if self._is_bar:
                self._draw(meter, stats)
            else:
                self._print(now, meter, stats)
        except OSError:  # the terminal or pipe is gone; the run goes on without
            self._due = float("inf")

    def close(self) -> None:
        """Takes the bar away, so that the summary stands alone."""
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()

    def _draw(self, meter: Meter, stats: EngineStats) -> None:
        if self._bar is None:
            self._bar = _Bar(file=self._stream, dynamic_ncols=True, leave=False, bar_format=" ")
        self._bar.show(meter, self._figures(meter, stats))

    def _print(self, now: float, meter: Meter, stats: EngineStats) -> None:
        if self._start is None:
            self._start = now
            return
        of_total = "" if meter.total is None else f" of {meter.total:,}"
        line = f"{meter.num_done:,}{of_total} rows, {self._figures(meter, stats)}"
        left = _seconds_left(meter, now - self._start)
        if left is not None:
            line += f", {tqdm.format_interval(left)} left"
        print(line, file=self._stream, flush=True)

    def _figures(self, meter: Meter, stats: EngineStats) -> str:
        first, last = self._samples[0], self._samples[-1]
        seconds = last.seconds - first.seconds
        # Failures first: a narrow terminal cuts the end.
        parts = [f"{meter.num_failed:,} failed"] if meter.num_failed else []
        parts.append(f"{stats.running} running")
        if seconds > 0:
            prompt = (last.prefill_tokens - first.prefill_tokens) / seconds
            decode = (last.decode_tokens - first.decode_tokens) / seconds
            parts.append(f"prompt {prompt:,.0f}, decode {decode:,.0f} tok/s")
        return ", ".join(parts)

    def _sample(self, now: float, stats: EngineStats) -> None:
        """Keeps what the rates need: one sample older than the window, and all within it."""
        self._samples.append(_Sample(now, stats.prefill_tokens, stats.decode_tokens))
        while len(self._samples) > 2 and self._samples[1].seconds <= now - WINDOW_SECONDS:
            self._samples.popleft()


def _seconds_left(meter: Meter, seconds: float) -> float | None:
    computed = meter.num_done - meter.num_reused
    if meter.total is None or not computed:
        return None
    return max(0, meter.total - meter.num_done) * seconds / computed


class _Bar(tqdm):  # type: ignore[type-arg]
    """tqdm told the count instead of increments; rows reused at once have no part in its ETA."""

    monitor_interval = 0  # no thread of its own: it is redrawn at every update

    def show(self, meter: Meter, figures: str) -> None:
        self.total = meter.total
        self.bar_format = _NO_TOTAL if meter.total is None else _BAR
        self.initial = meter.num_reused
        self.n = meter.num_done
        self.set_description_str(figures, refresh=False)
        self.refresh()
