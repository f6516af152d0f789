"""A shared prefix is computed once and kept once, and changes no answer."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.engine import Engine, budget
from batchrun.records import Prefix, Prompt
from tests import tiny
from tests.engine.fakes import prompt, run
from tests.engine.tinymodels import TinyModel, assert_greedy, load

MODEL_SETTINGS = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Counted:
    """A model that counts the real tokens it is fed; `fed` leaves out the padding, which is 0."""

    def __init__(self, model: TinyModel):
        self.model = model
        self.tokenizer = model.tokenizer
        self.fed = self.passes = 0

    takes_positions = False

    def __call__(self, tokens, cache, given=None):
        self.fed += int((tokens != 0).sum().item())
        self.passes += tokens.shape[1] > 1  # one token a row is decoding
        return self.model(tokens, cache=cache)

    def make_cache(self):
        return self.model.make_cache()

    def modules(self):
        return self.model.modules()


def some_ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, tiny.VOCAB_SIZE) for _ in range(length)]


def rows_of(
    prefix: Prefix | None, suffixes: list[list[int]], first: int, **sampling
) -> list[Prompt]:
    from dataclasses import replace

    start = prefix.token_ids if prefix else []
    return [
        replace(prompt(first + i, [*start, *suffix], **sampling), prefix=prefix)
        for i, suffix in enumerate(suffixes)
    ]


def check(model, prompts, **options):
    counted = Counted(model)
    runner = Engine(counted, model.tokenizer, **options)
    counted.fed = 0
    finished = run(runner, prompts)
    assert len(finished) == sum(p.sampling.n for p in prompts)
    for item in finished:
        ids = item.prompt.token_ids
        assert_greedy(model, ids, item.token_ids, f"row {item.prompt.row.index} of {len(ids)}")
    fresh = sum(len(item.prompt.token_ids) - item.cached_tokens for item in finished)
    assert runner.stats.prefill_tokens + len(finished) == fresh
    return runner, counted


# What is shared in decoding: all prefixes, the longer ones of a batch, none.
@pytest.mark.parametrize("shared_from", [1, 50, 1000])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_groups_loners_and_nested_prefixes_in_one_batch(kind, shared_from, tiny_model, monkeypatch):
    monkeypatch.setattr(budget, "SHARED_FROM", shared_from)
    rng = random.Random(kind)
    outer = Prefix(some_ids(rng, 60), 3)
    inner = Prefix(outer.token_ids + some_ids(rng, 45), 4, outer)
    other = Prefix(some_ids(rng, 33), 2)
    lengths = {outer: [5, 1, 40], inner: [1, 17, 30, 2], other: [64, 3], None: [70, 1, 12]}
    prompts: list[Prompt] = []
    for prefix, sizes in lengths.items():
        suffixes = [some_ids(rng, size) for size in sizes]
        prompts += rows_of(prefix, suffixes, len(prompts), max_tokens=14, ignore_eos=True)
    model = load(tiny_model(kind))
    for options in ({"max_num_seqs": 16}, {"max_num_seqs": 3, "max_num_batched_tokens": 32}):
        runner, _ = check(model, prompts, **options)
        saved = 3 * 60 + 4 * 105 + 2 * 33 - (60 + 45 + 33)
        assert runner.stats.cached_tokens == saved


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
@MODEL_SETTINGS
@given(data=st.data())
def test_any_groups(kind, tiny_model, data):
    sizes = data.draw(
        st.lists(
            st.tuples(st.integers(1, 50), st.lists(st.integers(1, 40), min_size=1, max_size=5)),
            min_size=1,
            max_size=4,
        ),
        label="prefix and suffix lengths",
    )
    rng = random.Random(repr(sizes))
    prompts: list[Prompt] = []
    parent = None
    for length, suffixes in sizes:
        start = parent.token_ids if parent else []
        prefix = Prefix([*start, *some_ids(rng, length)], len(suffixes), parent)
        parent = prefix if data.draw(st.booleans(), label="nested") else None
        prompts += rows_of(
            prefix,
            [some_ids(rng, size) for size in suffixes],
            len(prompts),
            max_tokens=data.draw(st.integers(1, 12), label="max_tokens"),
            ignore_eos=True,
        )
    budget.SHARED_FROM = data.draw(st.sampled_from([1, 25, 1000]), label="shared from")
    seqs = data.draw(st.integers(1, 8), label="max_num_seqs")
    check(load(tiny_model(kind)), prompts, max_num_seqs=seqs, max_num_batched_tokens=64)


def test_each_document_is_prefilled_once(tiny_model):
    rng = random.Random(2)
    prompts: list[Prompt] = []
    for _ in range(8):
        prefix = Prefix(some_ids(rng, 100), 5)
        suffixes = [some_ids(rng, 6) for _ in range(5)]
        prompts += rows_of(prefix, suffixes, len(prompts), max_tokens=3, ignore_eos=True)
    runner, counted = check(load(tiny_model("llama")), prompts, max_num_seqs=8)
    assert runner.stats.prefill_tokens == 8 * (100 + 5 * 5)
    assert counted.fed <= 8 * (100 + 5 * 6) + 40 * 8  # and the decode steps' inputs


def test_choices_share_the_prompt_after_its_prefix(tiny_model):
    rng = random.Random(4)
    prefix = Prefix(some_ids(rng, 20), 2)
    suffixes = [some_ids(rng, 7), some_ids(rng, 9)]
    prompts = rows_of(prefix, suffixes, 0, max_tokens=4, ignore_eos=True, n=3)
    runner, _ = check(load(tiny_model("gemma3")), prompts)
    assert runner.stats.prefill_tokens == 20 + 6 + 8


def test_one_copy_in_memory(tiny_model):
    """64 rows sharing 2,000 tokens, 50 of their own each: under 8 % of 64 copies."""
    rng = random.Random(6)
    prefix = Prefix(some_ids(rng, 2000), 64)
    suffixes = [some_ids(rng, 46) for _ in range(64)]
    model = load(tiny_model("llama"))
    prompts = rows_of(prefix, suffixes, 0, max_tokens=4, ignore_eos=True)
    shared, _ = check(model, prompts, max_num_seqs=64)
    one = Engine(model, model.tokenizer, max_num_seqs=1)
    run(one, [prompt(0, prefix.token_ids + suffixes[0], max_tokens=4)])
    assert shared.stats.kv_bytes_peak < 0.08 * 64 * one.stats.kv_bytes_peak


def test_the_budget_counts_a_shared_prefix_once(tiny_model):
    rng = random.Random(8)
    prefix = Prefix(some_ids(rng, 200), 8)
    suffixes = [some_ids(rng, 10) for _ in range(8)]
    prompts = rows_of(prefix, suffixes, 0, max_tokens=4, ignore_eos=True)
    per_token = 2 * 2 * 2 * 16 * 4  # layers, keys and values, KV heads, head size, float32
    budget = per_token * (200 + 8 * 14 + 1)
    runner, _ = check(load(tiny_model("llama")), prompts, kv_bytes=budget)
    assert runner.stats.peak_running == 8


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("shared_from", [1, 1000])
@pytest.mark.parametrize("lengths", [[2, 2], [1, 2], [2, 2, 1], [1, 1]])
def test_prompts_of_one_or_two_tokens_after_a_prefix_of_one(
    kind, shared_from, lengths, tiny_model, monkeypatch
):
    monkeypatch.setattr(budget, "SHARED_FROM", shared_from)
    rng = random.Random(kind)
    prefix = Prefix(some_ids(rng, 1), len(lengths))
    prompts = rows_of(prefix, [some_ids(rng, length) for length in lengths], 0, max_tokens=3)
    check(load(tiny_model(kind)), prompts)


@pytest.mark.parametrize("nested", [False, True])
def test_small_groups_take_few_passes(nested, tiny_model):
    """One for what they share, one for their prefixes, one for all that follows these."""
    rng = random.Random(9)
    outer = Prefix(some_ids(rng, 30), 0) if nested else None
    start = outer.token_ids if outer else []
    prompts: list[Prompt] = []
    for group in range(6):
        prefix = Prefix([*start, *some_ids(rng, 30 + group)], 2, outer)
        prompts += rows_of(prefix, [some_ids(rng, 5), some_ids(rng, 6)], len(prompts), max_tokens=2)
    counted = Counted(load(tiny_model("llama")))
    runner = Engine(counted, counted.tokenizer, max_num_seqs=12)
    counted.passes = 0
    answers = run(runner, prompts)
    assert counted.passes == (3 if nested else 2)
    for item in answers:
        ids = item.prompt.token_ids
        assert_greedy(counted.model, ids, item.token_ids, f"row {item.prompt.row.index}")
    fresh = sum(len(item.prompt.token_ids) - item.cached_tokens for item in answers)
    assert runner.stats.prefill_tokens + len(answers) == fresh
