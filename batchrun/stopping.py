"""When a run has to end early: on a signal, or when its time is up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# Of the time allowed, the last part is for the rows that still run when no more are admitted.
DRAIN_SHARE = 0.1

INTERRUPTED = "it was interrupted"  # how the reason begins

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """First no more rows are admitted (`is_asked`), then, at most `grace` seconds later, those
    that run are given up (`is_over`). `max_time` seconds from now, all has to be over."""

    def __init__(self, *, max_time: float | None, grace: float):
        self._grace = grace
        self._reason: str | None = None
        self._over_at = float("inf")
        self._ask_at = float("inf")
        if max_time is not None:
            self._over_at = time.monotonic() + max_time
            self._ask_at = self._over_at - min(grace, DRAIN_SHARE * max_time)

    @property
    def reason(self) -> str | None:
        """Why the run ends early; None while it need not."""
        if self._reason is None and time.monotonic() >= self._ask_at:
            self._reason = "its time was up (--max-time)"
        return self._reason

    def ask(self, reason: str) -> None:
        """Stop for `reason`, as a signal has it."""
        if self._reason is None:
            self._reason = reason
            self._over_at = min(self._over_at, time.monotonic() + self._grace)

    @property
    def is_asked(self) -> bool:
        return self.reason is not None

    @property
    def is_over(self) -> bool:
        return self.is_asked and time.monotonic() >= self._over_at

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Inside, the first SIGINT or SIGTERM asks to stop; a second one ends the process at
        once. Only a process's main thread can listen to signals: elsewhere they are left alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._reason = f"{INTERRUPTED} ({signal.Signals(number).name})"
        self._over_at = min(self._over_at, time.monotonic() + self._grace)
        # Python runs handlers between its own steps only; the system's default acts at once.
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        _tell(
            f"Stopping: rows that run have {self._grace:g} s to finish; "
            "interrupt again to end at once."
        )


def _tell(line: str) -> None:
    # Straight to stderr: a handler may have interrupted a print, and must not raise.
    with suppress(OSError):
        os.write(2, f"\n{line}\n".encode())
