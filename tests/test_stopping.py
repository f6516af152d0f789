"""When a run ends early: signals, in the main thread only, and the time allowed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from batchrun import stopping
from batchrun.stopping import Stop

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Clock:
    """Stands for the module `time`: it is as late as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopping, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever a test does, the process's own handlers come back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_run_without_limits_never_stops_by_itself(clock: Clock) -> None:
    stop = Stop(max_time=None, grace=30)
    clock.now += 1e9
    assert (stop.is_asked, stop.is_over, stop.reason) == (False, False, None)


@pytest.mark.parametrize(
    ("max_time", "grace", "asked_after"),
    [(100, 30, 90), (100, 2, 98), (1000, 30, 970), (100, 0, 100)],
)
def test_the_last_part_of_the_time_is_for_rows_that_still_run(
    clock: Clock, max_time: float, grace: float, asked_after: float
) -> None:
    stop = Stop(max_time=max_time, grace=grace)
    clock.now += asked_after - 0.001
    assert not stop.is_asked
    clock.now += 0.002
    assert stop.is_asked
    assert stop.reason == "its time was up (--max-time)"
    clock.now = 1000 + max_time - 0.001
    assert not stop.is_over
    clock.now += 0.002
    assert stop.is_over


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_first_and_ends_after_the_grace(clock: Clock, number: signal.Signals) -> None:
    stop = Stop(max_time=None, grace=30)
    with stop.on_signals():
        assert not stop.is_asked
        signal.raise_signal(number)
        assert stop.is_asked
        assert stop.reason == f"it was interrupted ({number.name})"
        clock.now += 29.9
        assert not stop.is_over
        clock.now += 0.2
        assert stop.is_over


def test_a_signal_never_prolongs_the_time_allowed(clock: Clock) -> None:
    stop = Stop(max_time=10, grace=30)
    with stop.on_signals():
        clock.now += 5
        signal.raise_signal(signal.SIGINT)
        clock.now += 5.1
        assert stop.is_over
    assert stop.reason == "it was interrupted (SIGINT)"


@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_signal_of_either_kind_ends_the_process(first: signal.Signals) -> None:
    with Stop(max_time=None, grace=30).on_signals():
        signal.raise_signal(first)
        assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_DFL] * 2


def test_the_first_signal_is_answered_with_what_happens_now(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Stop(max_time=None, grace=7).on_signals():
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == (
        "\nStopping: rows that run have 7 s to finish; interrupt again to end at once.\n"
    )


def test_handlers_come_back_even_after_an_error() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError, match="boom"), Stop(max_time=None, grace=1).on_signals():
        assert [signal.getsignal(number) for number in SIGNALS] != before
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("boom")
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_another_thread_leaves_signals_alone() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    seen = []

    def work() -> None:
        with Stop(max_time=None, grace=1).on_signals():
            seen.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == before
