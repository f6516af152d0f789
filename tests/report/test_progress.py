from __future__ import annotations

import io
import threading

import pytest

from batchrun.engine.stats import EngineStats
from batchrun.report.meter import Meter
from batchrun.report.progress import LINE_SECONDS, Progress
from tests.report.figures import Clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def frames(self) -> list[str]:
        return [frame.strip() for frame in self.getvalue().split("\r") if frame.strip()]


class Run:
    """A run that goes on in steps, and its progress on `stream`."""

    def __init__(self, stream: io.StringIO, total: int | None = 100, *, quiet: bool = False):
        self.clock = Clock()
        self.meter = Meter(self.clock)
        self.meter.expected = total
        self.stats = EngineStats()
        self.progress = Progress(quiet=quiet, stream=stream, clock=self.clock)

    def step(self, seconds: float, rows: int = 0, tokens: int = 0) -> None:
        """`seconds` in which `rows` were done and as many prompt and ten times fewer decoded
        tokens."""
        self.clock.now += seconds
        for _ in range(rows):
            self.meter.completed(1, 0, 1, "stop")
        self.stats.prefill_tokens += tokens
        self.stats.decode_tokens += tokens // 10
        self.stats.running = 3
        self.progress.update(self.meter, self.stats)


class Gone(Terminal):
    """A terminal or pipe that nobody reads any more."""

    def __init__(self, *, is_terminal: bool):
        super().__init__()
        self.is_terminal = is_terminal
        self.attempts = 0

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        self.attempts += 1
        raise BrokenPipeError


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_run_goes_on_when_nobody_reads_its_progress(is_terminal: bool) -> None:
    stream = Gone(is_terminal=is_terminal)
    run = Run(stream)
    for _ in range(3):
        run.step(LINE_SECONDS, rows=1)
    assert stream.attempts == 1
    run.progress.close()


def test_without_a_terminal_a_line_comes_every_half_minute() -> None:
    stream = io.StringIO()
    run = Run(stream)
    for _ in range(61):
        run.step(1.0, rows=1, tokens=1000)
    run.progress.close()

    assert stream.getvalue().splitlines() == [
        "31 of 100 rows, 3 running, prompt 1,000, decode 100 tok/s, 01:06 left",
        "61 of 100 rows, 3 running, prompt 1,000, decode 100 tok/s, 00:38 left",
    ]


def test_a_line_comes_also_while_no_row_finishes() -> None:
    stream = io.StringIO()
    run = Run(stream)
    run.step(0)
    run.step(LINE_SECONDS)

    assert stream.getvalue() == ("0 of 100 rows, 3 running, prompt 0, decode 0 tok/s\n")


def test_a_line_of_an_input_of_unknown_length_names_failures_and_no_eta() -> None:
    stream = io.StringIO()
    run = Run(stream, total=None)
    run.step(0)
    run.meter.num_failed = 2
    run.step(LINE_SECONDS, rows=1)

    assert stream.getvalue() == ("3 rows, 2 failed, 3 running, prompt 0, decode 0 tok/s\n")


def test_reused_rows_have_no_part_in_the_time_left() -> None:
    stream = io.StringIO()
    run = Run(stream)
    run.step(0)
    for _ in range(80):
        run.meter.reused("stop")
    run.step(LINE_SECONDS, rows=10)

    assert stream.getvalue().startswith("90 of 100 rows")
    assert stream.getvalue().endswith(", 00:30 left\n")


def test_rates_are_those_of_the_last_seconds() -> None:
    stream = Terminal()
    run = Run(stream)
    for _ in range(20):
        run.step(1.0, tokens=10_000)
    for _ in range(12):
        run.step(1.0, tokens=100)
    run.progress.close()

    assert "prompt 100, decode 10 tok/s" in stream.frames()[-1]


def test_on_a_terminal_a_bar_shows_rows_rates_and_failures() -> None:
    stream = Terminal()
    run = Run(stream)
    run.step(0.5, rows=10)
    run.meter.num_failed = 1
    run.step(0.5, rows=39, tokens=500)

    last = stream.frames()[-1]
    assert "| 50/100 [00:00<00:00] " in last
    assert last.endswith("1 failed, 3 running, prompt 1,000, decode 100 tok/s")


def test_the_bar_of_an_input_of_unknown_length_counts_rows() -> None:
    stream = Terminal()
    run = Run(stream, total=None)
    run.step(0.5, rows=7)

    assert stream.frames()[-1].startswith("7 rows [")


def test_the_bar_is_redrawn_a_few_times_a_second_and_no_more() -> None:
    stream = Terminal()
    run = Run(stream)
    for _ in range(1000):
        run.step(0.001)

    assert len(stream.frames()) <= 7


def test_the_bar_starts_no_thread() -> None:
    before = threading.active_count()
    run = Run(Terminal())
    run.step(1.0, rows=1)
    during = threading.active_count()
    run.progress.close()

    assert during == before


def test_the_bar_goes_when_closed() -> None:
    stream = Terminal()
    run = Run(stream)
    run.step(1.0, rows=1)
    shown = stream.getvalue()
    run.progress.close()

    before, blanks, after = stream.getvalue().removeprefix(shown).split("\r")
    assert (before, blanks.strip(), after) == ("", "", "")
    assert len(blanks) >= len(stream.frames()[-1])


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet_shows_nothing(stream: io.StringIO) -> None:
    run = Run(stream, quiet=True)
    for _ in range(100):
        run.step(1.0, rows=1)
    run.progress.close()

    assert stream.getvalue() == ""
