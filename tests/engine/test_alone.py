"""A row never depends on its neighbours: on every kind of cache, in any company."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.engine import Engine, batch
from batchrun.records import Completion
from tests import tiny
from tests.engine.fakes import by_row, prompt, run
from tests.engine.tinymodels import assert_greedy, load, logits_alone

LOADED = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def some_ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, tiny.VOCAB_SIZE) for _ in range(length)]


def check_all_alone(model, prompts, **options):
    runner = Engine(model, model.tokenizer, **options)
    assert not any("one at a time" in note for note in runner.stats.notes)
    answers = by_row(run(runner, prompts))
    for row in prompts:
        answer = answers[row.row.index]
        assert len(answer) == row.sampling.max_tokens
        assert_greedy(model, row.token_ids, answer, f"row {row.row.index} of {len(row.token_ids)}")
    return runner


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_lengths_that_meet_every_edge(kind, tiny_model):
    """Very different lengths at once; one below, at and above a window of 32 and a chunk of 64;
    far more than a chunk; rows that end at once and rows that stay."""
    rng = random.Random(kind)
    lengths = [1, 3, 12, 200, 31, 32, 33, 37, 100, 1, 2, 64, 65, 66, 135, 5]
    prompts = [
        prompt(i, some_ids(rng, n), max_tokens=rng.choice([1, 2, 12, 30]), ignore_eos=True)
        for i, n in enumerate(lengths)
    ]
    model = load(tiny_model(kind))
    check_all_alone(model, prompts, max_num_seqs=4, max_num_batched_tokens=64)
    check_all_alone(model, prompts, max_num_seqs=16, max_num_batched_tokens=2048)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba2", "lfm2"])
@LOADED
@given(data=st.data())
def test_any_company(kind, tiny_model, data):
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=12), label="lengths")
    limits = data.draw(
        st.lists(st.integers(1, 24), min_size=len(lengths), max_size=len(lengths)), label="limits"
    )
    seqs = data.draw(st.integers(1, 6), label="max_num_seqs")
    chunk = data.draw(st.sampled_from([1, 7, 32, 512]), label="max_num_batched_tokens")
    rng = random.Random(repr(lengths))
    prompts = [
        prompt(i, some_ids(rng, n), max_tokens=limit, ignore_eos=True)
        for i, (n, limit) in enumerate(zip(lengths, limits, strict=True))
    ]
    model = load(tiny_model(kind))
    check_all_alone(model, prompts, max_num_seqs=seqs, max_num_batched_tokens=chunk)


def test_a_long_decode_outgrows_its_columns(tiny_model):
    rng = random.Random(3)
    prompts = [prompt(i, some_ids(rng, 9 + i), max_tokens=300, ignore_eos=True) for i in range(3)]
    prompts += [prompt(i, some_ids(rng, 40), max_tokens=7, ignore_eos=True) for i in range(3, 30)]
    check_all_alone(load(tiny_model("llama")), prompts, max_num_seqs=5)


def test_steps_that_overlap(tiny_model, monkeypatch):
    """As on a GPU: the next step starts from tokens that nobody has read."""
    monkeypatch.setattr(batch, "OVERLAPS", True)
    rng = random.Random(13)
    prompts = [
        prompt(i, some_ids(rng, rng.randint(1, 60)), max_tokens=rng.randint(1, 20), ignore_eos=True)
        for i in range(30)
    ]
    for kind in ("llama", "gemma3", "lfm2"):
        check_all_alone(load(tiny_model(kind)), prompts, max_num_seqs=6)


def test_logprobs_are_those_of_the_row_alone(tiny_model):
    model = load(tiny_model("qwen3"))
    rng = random.Random(5)
    asked = {0: 0, 2: 3, 3: 20}
    prompts = [
        prompt(
            i,
            some_ids(rng, 3 + 11 * i),
            max_tokens=6,
            ignore_eos=True,
            logprobs=i in asked,
            top_logprobs=asked.get(i, 0),
        )
        for i in range(5)
    ]
    for item in run(Engine(model, model.tokenizer), prompts):
        assert isinstance(item, Completion)
        index = item.prompt.row.index
        if index not in asked:
            assert item.logprobs is None
            continue
        assert [score.token_id for score in item.logprobs] == item.token_ids
        for step, score in enumerate(item.logprobs):
            logits = logits_alone(model, [*item.prompt.token_ids, *item.token_ids[:step]])
            logprobs = (logits - mx.logsumexp(logits)).tolist()
            best = sorted(logprobs, reverse=True)[: asked[index]]
            assert score.logprob == pytest.approx(logprobs[score.token_id], abs=1e-3)
            assert [value for _, value in score.top] == pytest.approx(best, abs=1e-3)
            assert all(logprobs[t] == pytest.approx(v, abs=1e-3) for t, v in score.top)


def test_sampled_rows_repeat_in_any_batch_and_order(tiny_model):
    model = load(tiny_model("llama"))
    rng = random.Random(7)
    prompts = [
        prompt(
            i,
            some_ids(rng, 4 + i),
            max_tokens=10,
            temperature=rng.choice([0.0, 0.7, 1.5]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 5]),
            min_p=rng.choice([0.0, 0.05]),
            presence_penalty=rng.choice([0.0, 0.5]),
            n=2 if i % 5 == 0 else 1,
        )
        for i in range(16)
    ]

    def answers(prompts, **options):
        finished = run(Engine(model, model.tokenizer, **options), prompts)
        return {(item.prompt.row.index, item.choice): item.token_ids for item in finished}

    alone = answers(prompts, max_num_seqs=1)
    assert answers(prompts, max_num_seqs=8, max_num_batched_tokens=32) == alone
    assert answers(prompts[::-1], max_num_seqs=5) == alone
    assert alone[0, 0] != alone[0, 1] or prompts[0].sampling.temperature == 0


def test_greedy_rows_beside_hot_ones(tiny_model):
    model = load(tiny_model("llama"))
    ids = some_ids(random.Random(9), 12)
    kinds = [{"temperature": 1.5}, {}, {"temperature": 2.0, "top_k": 1}, {"temperature": 1.5}]
    prompts = [prompt(i, ids, max_tokens=12, ignore_eos=True, **k) for i, k in enumerate(kinds)]
    answers = by_row(run(Engine(model, model.tokenizer), prompts))
    assert_greedy(model, ids, answers[1], "greedy beside hot rows")
    assert answers[2] == answers[1]
    assert answers[0] != answers[1]


def test_a_forbidden_first_token_never_appears_in_a_late_row(tiny_model):
    model = load(tiny_model("llama"))
    rng = random.Random(11)
    prompts = [prompt(i, some_ids(rng, 5), max_tokens=n) for i, n in enumerate([2, 4, 20])]
    ids = some_ids(rng, 6)
    natural = int(mx.argmax(logits_alone(model, ids)).item())
    late = prompt(3, ids, max_tokens=8, logit_bias=((natural, -100.0),))
    answers = by_row(run(Engine(model, model.tokenizer, max_num_seqs=3), [*prompts, late]))
    assert natural not in answers[3]
    assert answers[3]


def test_rows_with_penalties_and_bias_join_while_a_long_prompt_is_prefilled(tiny_model):
    model = load(tiny_model("llama"))
    rng = random.Random(13)
    long = prompt(0, some_ids(rng, 2000), max_tokens=8, ignore_eos=True)
    odd = [{"repetition_penalty": 1.3}, {"logit_bias": ((9, 8.0),)}, {"frequency_penalty": 0.6}, {}]
    late = [
        prompt(i, some_ids(rng, 6 + i), max_tokens=12, ignore_eos=True, **kind)
        for i, kind in enumerate(odd, start=1)
    ]
    alone = by_row(run(Engine(model, model.tokenizer, max_num_seqs=1), late))
    runner = Engine(model, model.tokenizer, max_num_seqs=3, max_num_batched_tokens=256)
    answers = by_row(run(runner, [late[0], long, *late[1:]]))
    assert_greedy(model, long.token_ids, answers.pop(0), "the long prompt")
    assert answers == alone


def test_ids_past_the_tokenizers_vocabulary_have_no_text_and_do_no_harm(tiny_model):
    model = load(tiny_model("llama", vocab_size=512))
    padded = tuple((token, 100.0) for token in range(400, 512))
    prompts = [prompt(0, [5, 6], max_tokens=4, logit_bias=padded), prompt(1, [5, 6], max_tokens=4)]
    finished = {
        item.prompt.row.index: item for item in run(Engine(model, model.tokenizer), prompts)
    }
    assert all(token >= 400 for token in finished[0].token_ids)
    assert finished[0].text == ""
    assert finished[1].text
