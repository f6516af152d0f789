from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from batchrun.errors import RowError
from batchrun.records import Request, Row, Sampling
from batchrun.report.meter import Meter
from tests.report.figures import Clock


def test_counts_rows_tokens_and_reasons() -> None:
    meter = Meter()
    meter.completed(10, 4, 7, "stop")
    meter.completed(5, 0, 3, "length")
    meter.reused("stop")
    meter.failed(RowError("invalid_request", "no"), Row(3, "in.jsonl", 4))

    assert (meter.num_completed, meter.num_reused, meter.num_failed) == (2, 1, 1)
    assert (meter.num_answered, meter.num_done) == (3, 4)
    assert (meter.prompt_tokens, meter.cached_tokens, meter.completion_tokens) == (15, 4, 10)
    assert meter.finish_reasons == {"stop": 2, "length": 1}


def test_a_row_with_several_choices_is_one_row_and_truncated_once() -> None:
    meter = Meter()
    meter.completed(10, 0, 21, "stop", "length", "length")

    assert meter.num_completed == 1
    assert meter.num_truncated == 1
    assert meter.finish_reasons == Counter(stop=1, length=2)


def test_a_reused_truncated_row_counts_as_truncated_but_not_its_tokens() -> None:
    meter = Meter()
    meter.reused("length")

    assert meter.num_truncated == 1
    assert meter.completion_tokens == 0


def test_models_that_rows_name_are_counted_up_to_a_hundred() -> None:
    meter = Meter()
    for name in ("a", None, "b", "a", *map(str, range(200)), "b"):
        meter.asked(Request(Row(0, "in.jsonl", 1), Sampling(), prompt="hi", model=name))

    assert (meter.models_named["a"], meter.models_named["b"]) == (2, 2)
    assert len(meter.models_named) == 100


def test_errors_are_counted_by_code_with_the_first_as_example() -> None:
    meter = Meter()
    for line, custom_id in ((4, "a"), (9, None)):
        row = Row(line - 1, "in.jsonl", line, custom_id)
        meter.failed(RowError("invalid_url", f"line {line}"), row)

    error = meter.errors["invalid_url"]
    assert (error.count, error.row, error.message) == (2, "in.jsonl:4 (custom_id a)", "line 4")


def test_phases_add_up_also_when_left_by_an_exception() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
    with meter.phase("load"):
        clock.now += 2.0
    with pytest.raises(KeyError), meter.phase("load"):
        clock.now += 0.5
        raise KeyError

    assert meter.seconds == {"load": 2.5, "prepare": 0, "prefill": 0, "decode": 0, "write": 0}
    assert meter.elapsed == 2.5


def test_phases_of_several_threads_add_up() -> None:
    threads = 4
    clock = Clock()
    meter = Meter(clock=clock)
    inside = Barrier(threads, action=lambda: setattr(clock, "now", 1.0))

    def work(_: int) -> None:
        with meter.phase("prepare"):
            inside.wait(timeout=30)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))

    assert meter.seconds["prepare"] == threads
