"""Which shared prefixes stay in memory."""

from __future__ import annotations

import random
from dataclasses import replace

from batchrun.engine import Engine
from batchrun.records import Prefix, Prompt
from tests import tiny
from tests.engine.fakes import CountingModel, by_row, engine, prompt, run
from tests.engine.tinymodels import load


def some_ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, tiny.VOCAB_SIZE) for _ in range(length)]


def test_the_same_tokens_in_a_later_window_are_the_same_prefix(tiny_model):
    rng = random.Random(1)
    shared = some_ids(rng, 50)
    rows: list[Prompt] = []
    for _window in range(3):
        prefix = Prefix(list(shared), 2)
        for _ in range(2):
            row = prompt(len(rows), [*shared, *some_ids(rng, 5)], max_tokens=2, ignore_eos=True)
            rows.append(replace(row, prefix=prefix))
    alone = prompt(len(rows), [*shared, *some_ids(rng, 5)], max_tokens=2, ignore_eos=True)
    model = load(tiny_model("llama"))
    runner = Engine(model, model.tokenizer, max_num_seqs=2)
    assert len(by_row(run(runner, [*rows, alone]))) == 7
    assert runner.stats.prefill_tokens == 50 + 7 * 4


def test_idle_prefixes_make_room_for_rows(tiny_model):
    """Eight documents are kept; with room for two, they do not make rows run one at a time."""
    rng = random.Random(2)
    rows: list[Prompt] = []
    for _document in range(6):
        prefix = Prefix(some_ids(rng, 200), 4)
        for _ in range(4):
            row = prompt(len(rows), [*prefix.token_ids, *some_ids(rng, 6)], max_tokens=4)
            rows.append(replace(row, prefix=prefix))
    model = load(tiny_model("llama"))
    per_token = 2 * 2 * 2 * 16 * 4  # layers, keys and values, KV heads, head size, float32
    runner = Engine(model, model.tokenizer, max_num_seqs=4, kv_bytes=per_token * (2 * 200 + 4 * 10))
    assert len(by_row(run(runner, rows))) == 24
    assert runner.stats.peak_running == 4
    assert runner.stats.row_steps / runner.stats.decode_steps > 2


def test_a_prefix_to_be_computed_counts_before_it_is_there():
    model = CountingModel()
    runner = engine(model, max_num_seqs=8, kv_bytes=8 * 60)  # 8 bytes a token
    prefix = Prefix([5] * 50, 2)
    first = prompt(0, [9] * 30, max_tokens=10)
    second = replace(prompt(1, [*prefix.token_ids, 9], max_tokens=4), prefix=prefix)
    model.rows.clear()
    assert len(by_row(run(runner, [first, second]))) == 2
    assert max(model.rows) == 1


def test_sequences_whose_prefill_cannot_begin_are_not_lost(tiny_model, monkeypatch):
    model = load(tiny_model("llama"))
    runner = Engine(model, model.tokenizer)
    attempts: list[int] = []
    missing = runner._intake._pool.missing

    def fails_once(prefix):
        attempts.append(1)
        if len(attempts) == 1:
            raise MemoryError
        return missing(prefix)

    monkeypatch.setattr(runner._intake._pool, "missing", fails_once)
    rows = [prompt(i, [4, 5, 6 + i], max_tokens=2, ignore_eos=True) for i in range(4)]
    assert len(by_row(run(runner, rows))) == 4
