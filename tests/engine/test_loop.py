"""The loop's own logic, on a model whose answers are known."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.engine import batch
from batchrun.records import Completion, Failure
from tests.engine.fakes import EOS, CountingModel, by_row, engine, prompt, run


def expected(first: int, max_tokens: int) -> list[int]:
    return [*range(first + 1, EOS + 1)][:max_tokens]


@pytest.mark.parametrize("overlaps", [False, True])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 62), st.integers(1, 70)), max_size=30
    ),
    max_num_seqs=st.integers(1, 9),
    max_num_batched_tokens=st.integers(1, 64),
)
def test_every_row_is_answered_once_and_right(
    overlaps, monkeypatch, rows, max_num_seqs, max_num_batched_tokens
):
    """On a CPU, where a step is read before the next one starts, and elsewhere."""
    monkeypatch.setattr(batch, "OVERLAPS", overlaps)
    model = CountingModel()
    prompts = [
        prompt(i, [0] * (length - 1) + [last], max_tokens=tokens)
        for i, (length, last, tokens) in enumerate(rows)
    ]
    runner = engine(model, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    model.widths.clear(), model.rows.clear()
    answers = by_row(run(runner, prompts))
    assert answers == {i: expected(last, tokens) for i, (_, last, tokens) in enumerate(rows)}
    assert max(model.rows, default=0) <= max_num_seqs
    assert max(model.widths, default=0) <= max(max_num_batched_tokens, 2)
    assert runner.stats.peak_running <= max_num_seqs


def test_finish_reasons_and_usage():
    prompts = [
        prompt(0, [60], max_tokens=3),
        prompt(1, [60], max_tokens=2),
        prompt(2, [60], max_tokens=1000),
        prompt(3, [60], max_tokens=0),
        prompt(4, [60], max_tokens=1),
        prompt(5, [60], max_tokens=9, ignore_eos=True),
        prompt(6, [10], max_tokens=9, stop_token_ids=(13,)),
    ]
    finished = {item.prompt.row.index: item for item in run(engine(CountingModel()), prompts)}
    seen = {i: (c.finish_reason, c.stop_reason, len(c.token_ids)) for i, c in finished.items()}
    assert seen == {
        0: ("stop", None, 3),  # EOS exactly at max_tokens
        1: ("length", None, 2),
        2: ("stop", None, 3),
        3: ("length", None, 0),
        4: ("length", None, 1),
        5: ("length", None, 9),
        6: ("stop", 13, 3),
    }
    assert finished[0].text == "jk"  # tokens 61 and 62, EOS is no text
    assert finished[6].text == "lm"


def test_stops_of_one_row_do_not_reach_another():
    prompts = [prompt(0, [5], max_tokens=9)]
    prompts += [prompt(1, [5], max_tokens=9, stop_token_ids=(8,))]
    prompts += [prompt(2, [5], max_tokens=9, stop=("jk",)), prompt(3, [5], max_tokens=9)]
    texts = {item.prompt.row.index: item.text for item in run(engine(CountingModel()), prompts)}
    assert texts == {0: "ghijklmno", 1: "gh", 2: "ghi", 3: "ghijklmno"}


def test_a_plain_row_joins_while_another_with_penalties_is_prefilled():
    long = prompt(0, [7] * 99 + [8], max_tokens=30, repetition_penalty=1.2)
    short = [prompt(i, [i], max_tokens=30, logit_bias=((i + 1, -100.0),)) for i in range(1, 4)]
    plain = [prompt(i, [i], max_tokens=20) for i in range(4, 8)]
    runner = engine(CountingModel(), max_num_seqs=3, max_num_batched_tokens=8)
    answers = by_row(run(runner, [*plain, long, *short]))
    assert all(answers[p.row.index] == expected(p.token_ids[0], 20) for p in plain)
    assert all(p.token_ids[0] + 1 not in answers[p.row.index][:1] for p in short)


def test_choices_of_one_prompt_share_its_prefill():
    finished = run(engine(CountingModel()), [prompt(0, [1, 2, 3, 4, 5], max_tokens=2, n=4)])
    assert sorted(item.choice for item in finished) == [0, 1, 2, 3]
    assert [item.cached_tokens for item in sorted(finished, key=lambda c: c.choice)] == [0, 4, 4, 4]


def test_more_choices_than_places():
    runner = engine(CountingModel(), max_num_seqs=3)
    finished = run(runner, [prompt(0, [1, 2, 3], max_tokens=2, n=10)])
    assert sorted(item.choice for item in finished) == list(range(10))
    assert runner.stats.peak_running == 3


def test_none_means_not_ready_and_is_no_prompt():
    prompts = [None, prompt(0, [1], max_tokens=2), None, None, prompt(1, [2], max_tokens=2), None]
    assert by_row(run(engine(CountingModel()), prompts)) == {0: [2, 3], 1: [3, 4]}


def test_no_prompts():
    assert run(engine(CountingModel()), []) == []


def test_one_row_that_raises_fails_alone():
    prompts = [prompt(i, [20 + i % 3], max_tokens=8) for i in range(20)]
    prompts.insert(11, prompt(99, [40], max_tokens=8))  # meets the poison at its fifth step
    finished = run(engine(CountingModel(poison=45), max_num_seqs=8), prompts)
    failures = [item for item in finished if isinstance(item, Failure)]
    assert [(f.row.index, f.error.code, f.key) for f in failures] == [
        (99, "engine_error", "key-99")
    ]
    assert "poisoned" in failures[0].error.message
    answers = by_row([item for item in finished if isinstance(item, Completion)])
    assert answers == {i: expected(20 + i % 3, 8) for i in range(20)}


def test_a_model_that_always_raises_fails_every_row():
    model = CountingModel()
    runner = engine(model)
    model.poison = 9
    finished = run(runner, [prompt(i, [9], max_tokens=4) for i in range(50)])
    assert {item.row.index for item in finished} == set(range(50))
    assert all(item.error.code == "engine_error" for item in finished)


def test_too_little_memory_halves_the_batch_and_loses_nothing():
    class SmallMemory(CountingModel):
        def __call__(self, tokens, cache, given=None):
            if tokens.shape[0] > 5:
                raise RuntimeError("[malloc] Unable to allocate 123 bytes.")
            return super().__call__(tokens, cache, given)

    runner = engine(SmallMemory(), max_num_seqs=16)
    finished = run(runner, [prompt(i, [i], max_tokens=6) for i in range(40)])
    assert by_row(finished) == {i: expected(i, 6) for i in range(40)}
    assert any("memory ran out" in note for note in runner.stats.notes)


def test_what_the_source_raises_is_not_blamed_on_rows():
    def broken():
        yield prompt(0, [1], max_tokens=50)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        run(engine(CountingModel(), max_num_seqs=2), broken())


def test_kv_budget_is_asked_before_admission():
    model = CountingModel()
    # One float32 key and value of one number each: 8 bytes a token, 80 for ten tokens.
    runner = engine(model, max_num_seqs=16, kv_bytes=3 * 80)
    model.rows.clear()
    finished = run(runner, [prompt(i, [i, i], max_tokens=8) for i in range(12)])
    assert len(by_row(finished)) == 12
    assert max(model.rows) == 3


def test_a_row_beyond_the_budget_still_runs_alone():
    runner = engine(CountingModel(), kv_bytes=8)
    assert len(by_row(run(runner, [prompt(i, [i] * 9, max_tokens=8) for i in range(3)]))) == 3
    assert runner.stats.peak_running == 1


def test_a_model_whose_caches_hold_one_row_runs_rows_one_at_a_time():
    class Single(CountingModel):
        def make_cache(self):
            from mlx_lm.models.cache import ConcatenateKVCache

            return [ConcatenateKVCache()]

    runner = engine(Single())
    finished = run(runner, [prompt(i, [1] * (i + 1), max_tokens=3, n=2) for i in range(5)])
    assert all(item.token_ids == [2, 3, 4] for item in finished)
    assert len(finished) == 10
    assert runner.stats.peak_running == 1
    assert "one at a time" in runner.stats.notes[0]


def test_draining_finishes_what_runs_and_starts_nothing_more():
    runner = engine(CountingModel(), max_num_seqs=4)
    finished: list[Completion | Failure] = []
    for turn in runner.run(prompt(i, [i, i, i], max_tokens=5) for i in range(40)):
        finished += turn
        if runner.stats.decode_steps == 1:
            runner.drain()
    assert by_row(finished) == {i: expected(i, 5) for i in range(4)}
    assert runner.stats.peak_running == 4


def test_no_more_wait_than_have_room():
    """What is pulled from the source but not run is lost to a run that is stopped."""
    pulled: list[int] = []

    def source():
        for index in range(40):
            pulled.append(index)
            yield prompt(index, [7] * 30, max_tokens=9)

    runner = engine(CountingModel(), max_num_seqs=4, max_num_batched_tokens=8)
    for _turn in runner.run(source()):
        if runner.stats.decode_steps == 1:
            break
    assert len(pulled) == 4
