"""Not to wait for a store for ever, whatever its driver does."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from batchrun.remote.store import StoreError

T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """What `function` returns, or raises. Raises StoreError when that takes longer: then it is left
    behind in its thread."""
    done: Future[T] = Future()
    Thread(target=_settle, args=(done, function), name="batchrun-store", daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError as error:
        problem = f"did not answer within {seconds:g} seconds; try again"
        raise StoreError(errno.ETIMEDOUT, problem) from error


def _settle(done: Future[T], function: Callable[[], T]) -> None:
    try:
        result = function()
    # Raised again to who waits.
    except BaseException as error:  # noqa: BLE001
        done.set_exception(error)
    else:
        done.set_result(result)
