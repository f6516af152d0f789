"""Read-ahead: order, bound, errors, closing. Nothing here waits for a clock but to fail."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from threading import Event, Lock
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.prepare import Ahead

T = TypeVar("T")

LONG = 30.0
MAX_IDLE = 2000


def taken(ahead: Ahead[T]) -> Iterator[T]:
    """The items; gives up on a thread that has stopped for good."""
    idle = 0
    for item in ahead:
        idle = 0 if item is not None else idle + 1
        assert idle < MAX_IDLE
        if item is not None:
            yield item


class Counted:
    """A source that counts what it has given, and tells when it is dropped."""

    def __init__(self) -> None:
        self.given = 0
        self.dropped = Event()
        self._lock = Lock()

    def __call__(self) -> Iterator[int]:
        try:
            for number in count():
                with self._lock:
                    self.given += 1
                yield number
        finally:
            self.dropped.set()


@given(st.lists(st.integers()), st.integers(1, 9))
def test_every_item_comes_once_and_in_order(items: list[int], depth: int) -> None:
    with Ahead(items, lambda item: (item,), depth=depth) as ahead:
        assert list(taken(ahead)) == [(item,) for item in items]


@given(st.integers(1, 9), st.integers(0, 40))
def test_never_more_than_depth_are_read_and_not_taken(depth: int, num_taken: int) -> None:
    source = Counted()
    with Ahead(source(), str, depth=depth) as ahead:
        items = taken(ahead)
        for number in range(num_taken):
            assert next(items) == str(number)
            assert source.given <= number + 1 + depth


def test_it_runs_ahead_to_its_depth() -> None:
    read = [Event() for _ in range(4)]
    with Ahead(range(4), lambda item: read[item].set(), depth=4):
        assert all(event.wait(LONG) for event in read)


def test_none_comes_while_nothing_is_ready() -> None:
    go = Event()
    with Ahead(range(1), lambda item: go.wait(LONG) and "done", depth=2) as ahead:
        assert next(ahead) is None
        assert next(ahead) is None
        go.set()
        assert list(taken(ahead)) == ["done"]


def test_an_error_of_the_source_comes_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield from range(3)
        raise OSError("disk gone")

    ahead = Ahead(source(), str, depth=8)
    items = taken(ahead)
    assert [next(items) for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(OSError, match="disk gone"):
        next(items)
    assert list(ahead) == []


def test_an_error_of_the_step_comes_in_its_place() -> None:
    items = taken(Ahead([4, 2, 0, 1], lambda item: 8 // item, depth=8))
    assert [next(items), next(items)] == [2, 4]
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_closing_wakes_a_thread_that_waits_for_room() -> None:
    source = Counted()
    full = Event()
    ahead = Ahead(source(), lambda item: full.set() if item == 1 else None, depth=2)
    assert full.wait(LONG)
    ahead.close()
    assert source.dropped.wait(LONG)
    assert source.given <= 2
    assert list(ahead) == []


def test_closing_does_not_wait_for_a_source_that_blocks() -> None:
    blocked, go = Event(), Event()

    def source() -> Iterator[int]:
        blocked.set()
        go.wait(LONG)
        yield 1

    ahead = Ahead(source(), str, depth=2)
    assert blocked.wait(LONG)
    ahead.close()
    assert not go.is_set()
    go.set()
    assert list(ahead) == []


def test_leaving_a_with_block_closes() -> None:
    source = Counted()
    with pytest.raises(KeyError), Ahead(source(), str, depth=2):
        raise KeyError
    assert source.dropped.wait(LONG)
