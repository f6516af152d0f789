"""A few threads that work ahead, and the room that their results may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

# Seconds that work under way may take to end. A thread that is still within OpenCV when Python ends
# takes the whole process down.
_GRACE = 5.0


class _Work(NamedTuple):
    future: Future[Any]
    function: Callable[[], Any]


class Workers:
    """Threads that take up work in the order in which it is given.

    Unlike those of an executor they do not hold up the end of the process: a download may take
    half a minute.
    """

    def __init__(self, num_threads: int) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._run, name=f"media-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._work.put(_Work(future, function))
        return future

    def close(self) -> None:
        """Cancel what is not begun, and wait a little for the rest."""
        while (work := self._next()) is not None:
            work.future.cancel()
        for _ in self._threads:
            self._work.put(None)
        end = time.monotonic() + _GRACE
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))

    def _next(self) -> _Work | None:
        try:
            return self._work.get_nowait()
        except Empty:
            return None

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            _settle(*work)
            del work  # and all that it holds, while the next is waited for


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    # Raised again to who asks for the result.
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)
    else:
        future.set_result(result)


class Closed(Exception):
    """Nobody wants the result any more."""


class Room:
    """Bytes that results may take before they are wanted. Safe to use from several threads."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._used = 0
        self._closed = False
        self._changed = Condition()

    def take(self, nbytes: int, is_wanted: Callable[[], bool]) -> None:
        """Wait until there are so many; what is wanted by now need not wait. Raises Closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._used + nbytes <= self._nbytes or is_wanted()
            )
            if self._closed:
                raise Closed
            self._used += nbytes

    def give_back(self, nbytes: int) -> None:
        with self._changed:
            self._used -= nbytes
            self._changed.notify_all()

    def ask_again(self) -> None:
        """Something may be wanted now that was not before."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
