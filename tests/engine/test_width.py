"""How many rows run at once, told of steps by a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.engine.width import LADDER, NUM_STEPS, Width
from tests.engine.fakes import CountingModel, by_row, engine, prompt, run


class Machine:
    """Steps over as many rows as may run; `seconds` says what a step over so many takes."""

    def __init__(self, seconds: Callable[[int], float], fits: Callable[[int], bool] | None = None):
        self.notes: list[str] = []
        self.width = Width(None, fits or (lambda rows: True), self.notes)
        self.seconds = seconds
        self.now = 0.0
        self.tried = [self.width.most]

    def step(self, num_tokens: int | None = None, extra: float = 0.0) -> None:
        rows = self.width.limit if num_tokens is None else num_tokens
        self.now += self.seconds(rows) + extra
        self.width.step(rows, self.now)
        if self.width.most != self.tried[-1]:
            self.tried.append(self.width.most)


def run_steps(machine: Machine, steps: int = 400) -> int:
    for _ in range(steps):
        machine.step()
    return machine.width.limit


def test_it_grows_to_the_end_where_more_rows_cost_nothing():
    machine = Machine(lambda rows: 0.1)
    assert run_steps(machine) == LADDER[-1]
    assert machine.tried == list(LADDER)
    assert len(machine.notes) == 1
    assert f"settled on {LADDER[-1]}" in machine.notes[0]


def test_it_stays_where_twice_the_rows_take_twice_as_long():
    machine = Machine(lambda rows: 0.01 * rows)
    assert run_steps(machine) == LADDER[0]
    assert machine.tried == [LADDER[0], LADDER[1], LADDER[0]]
    assert f"settled on {LADDER[0]} rows at once: more were not faster" in machine.notes[0]


@pytest.mark.parametrize(("best", "ladder"), [(64, [32, 64, 96, 64]), (96, [32, 64, 96, 128, 96])])
def test_it_goes_back_to_the_last_gain(best, ladder):
    machine = Machine(lambda rows: 0.1 * max(1, rows / best))
    assert run_steps(machine) == best
    assert machine.tried == ladder


def test_a_gain_of_less_than_a_twentieth_is_none():
    machine = Machine(lambda rows: rows / (1000 if rows == 32 else 1040))
    assert run_steps(machine) == 32


@given(st.randoms(use_true_random=False))
def test_slow_steps_now_and_then_change_nothing(rng):
    """Other work on the machine: two of any eight steps take ten times as long."""
    machine = Machine(lambda rows: 0.1 * max(1, rows / 64))
    for _ in range(30):
        slow = rng.sample(range(8), 2)
        for index in range(8):
            machine.step(extra=1.0 if index in slow else 0.0)
    assert machine.width.limit == 64


def test_steps_with_few_rows_say_nothing():
    machine = Machine(lambda rows: 0.1)
    for _ in range(400):
        machine.step(num_tokens=27)
    assert machine.width.limit == 32
    for _ in range(NUM_STEPS + 1):
        machine.step(num_tokens=28)
    assert machine.width.limit == 64


def test_other_work_between_steps_does_not_count():
    machine = Machine(lambda rows: 0.1)
    for _ in range(400):
        machine.step()
        machine.width.pause()
    assert machine.width.limit == 32


def test_it_does_not_grow_beyond_the_memory_for_caches():
    machine = Machine(lambda rows: 0.1, fits=lambda rows: rows <= 70)
    assert run_steps(machine) == 64
    assert machine.tried == [32, 64]
    assert "memory for caches" in machine.notes[0]


def test_out_of_memory_ends_the_growth():
    machine = Machine(lambda rows: 0.1)
    run_steps(machine, NUM_STEPS + 1)
    assert machine.width.limit == 64
    machine.width.halve(48, for_good=True)
    assert run_steps(machine) == 24
    for _ in range(200):
        machine.width.finished()
    assert machine.width.limit == machine.width.most == 24


def test_other_troubles_pass():
    machine = Machine(lambda rows: 0.1)
    machine.width.halve(32, for_good=False)
    assert (machine.width.limit, machine.width.most) == (16, 32)
    limits = [16]
    for _ in range(80):
        machine.width.finished()
        limits.append(machine.width.limit)
    assert limits[-1] == 32
    assert all(before <= after for before, after in pairwise(limits))
    assert run_steps(machine) == LADDER[-1]


@pytest.mark.parametrize("asked", [1, 7, 200])
def test_a_number_that_was_asked_for_stays(asked):
    notes: list[str] = []
    width = Width(asked, lambda rows: True, notes)
    for step in range(400):
        width.step(asked, step * 0.1)
    assert (width.limit, width.most, notes) == (asked, asked, [])


def test_rows_join_as_the_width_grows(monkeypatch):
    """The engine follows: a model whose step takes the same time for any number of rows."""
    clock = iter(range(10**9))
    monkeypatch.setattr("batchrun.engine.loop.time.perf_counter", lambda: float(next(clock)))
    model = CountingModel()
    runner = engine(model, max_num_seqs=None)
    prompts = [prompt(i, [i % 8], max_tokens=60) for i in range(700)]
    answers = by_row(run(runner, prompts))
    assert answers == {i: list(range(i % 8 + 1, 64))[:60] for i in range(700)}
    assert runner.stats.peak_running == LADDER[-1] == runner.stats.max_num_seqs
    assert max(model.rows) == LADDER[-1]
    assert any(f"settled on {LADDER[-1]}" in note for note in runner.stats.notes)


def test_the_engine_keeps_to_its_budget(monkeypatch):
    clock = iter(range(10**9))
    monkeypatch.setattr("batchrun.engine.loop.time.perf_counter", lambda: float(next(clock)))
    # One float32 key and value of one number each: 8 bytes a token, 61 tokens a row.
    runner = engine(CountingModel(), max_num_seqs=None, kv_bytes=70 * 8 * 61)
    run(runner, [prompt(i, [i % 8], max_tokens=60) for i in range(300)])
    assert runner.stats.max_num_seqs == 64
    assert runner.stats.peak_running == 64


def test_few_rows_leave_it_at_the_start():
    runner = engine(CountingModel(), max_num_seqs=None)
    run(runner, [prompt(i, [i], max_tokens=50) for i in range(5)])
    assert runner.stats.max_num_seqs == LADDER[0]
    assert not any("settled" in note for note in runner.stats.notes)
