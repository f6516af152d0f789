"""What the watch knows of chunks and workers."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from batchrun.spread.messages import Done
from batchrun.spread.state import State
from batchrun.spread.watch import Trial, Watch


def test_a_chunk_that_was_lived_through_is_not_on_trial() -> None:
    watch = Watch(2)
    assert watch.begin(4) is None
    watch.end(4)
    assert watch.begin(4) is None  # its answers were lost with their machine
    assert watch.num_deaths == 0


def test_a_row_is_deadly_once_a_worker_died_of_it_alone() -> None:
    watch, done = Watch(2), Done(is_whole=False)
    watch.begin(4)
    assert watch.begin(4) == Trial()
    watch.begin_row(4, 0)
    watch.end_row(4, 0, done)
    assert watch.begin(4) == Trial({0: done}, set())  # it died between two rows
    watch.begin_row(4, 1)
    assert watch.begin(4) == Trial({0: done}, {1})
    watch.begin_row(4, 2)
    assert watch.begin(4) == Trial({0: done}, {1, 2})
    assert watch.num_deaths == 4


def test_workers_that_die_loading_are_not_loaded_for_ever() -> None:
    watch = Watch(2)
    for _ in range(20):
        assert watch.begin_load()
        watch.end_load()
    assert [watch.begin_load() for _ in range(7)] == [True] * 5 + [False] * 2


def test_workers_are_told_to_stop() -> None:
    watch, state = Watch(1), State()
    assert not watch.tell("a", state)
    watch.stop()
    assert watch.tell("a", state)
    assert watch.look() == ([state], 0)
