"""Log-probabilities of given tokens equal those of one plain forward pass, in any company."""

from __future__ import annotations

import random
from dataclasses import replace

import mlx.core as mx
import pytest

from batchrun.engine import Engine, batch, scoring
from batchrun.plan import in_running_order
from batchrun.records import Completion, Prompt, Request, Row, Sampling
from tests import tiny
from tests.engine.fakes import prompt, run
from tests.engine.guided import Failing
from tests.engine.test_alone import some_ids
from tests.engine.tinymodels import load


def continued(index, context, continuation):
    request = Request(
        Row(index, "test.jsonl", index + 1), Sampling(max_tokens=0), prompt="", continuation="x"
    )
    return Prompt(request, context, f"key-{index}", continuation=tuple(continuation))


def with_scores(index, token_ids, top, **sampling):
    made = prompt(index, token_ids, **sampling)
    return replace(made, request=replace(made.request, prompt_logprobs=top))


def logprobs_alone(model, token_ids):
    """Of every token from the second on: log-probabilities of the whole vocabulary."""
    logits = model.module(mx.array([token_ids]))[0, :-1].astype(mx.float32)
    return (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()


def check(model, item):
    """The completion's scores against a plain forward pass."""
    given = [*item.prompt.token_ids, *item.prompt.continuation]
    first = len(item.prompt.token_ids) if item.prompt.continuation else 1
    expected = logprobs_alone(model, given)[first - 1 :] if len(given) > 1 else []
    assert [score.token_id for score in item.prompt_scores] == given[first:]
    for score, logprobs in zip(item.prompt_scores, expected, strict=True):
        own = logprobs[score.token_id]
        assert score.logprob == pytest.approx(own, abs=1e-4)
        larger = sum(value > own + 1e-4 for value in logprobs)
        smaller = sum(value < own - 1e-4 for value in logprobs)
        assert larger + 1 <= score.rank <= len(logprobs) - smaller
        asked = item.prompt.request.prompt_logprobs or 0
        best = sorted(logprobs, reverse=True)[:asked]
        assert [value for _, value in score.top] == pytest.approx(best, abs=1e-4)
        assert all(logprobs[t] == pytest.approx(v, abs=1e-4) for t, v in score.top)


def finished_by(model, prompts, **options):
    runner = Engine(model, model.tokenizer, **options)
    finished = run(runner, in_running_order(prompts, window=1000))
    assert all(isinstance(item, Completion) for item in finished), finished
    names = {(item.prompt.row.index, item.choice): item for item in finished}
    assert len(names) == len(finished)
    return runner, names


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_continuations_of_shared_contexts(kind, tiny_model):
    """Every context once; its continuations together, however they begin."""
    model = load(tiny_model(kind))
    rng = random.Random(kind)
    contexts = [some_ids(rng, n) for n in (1, 2, 31, 33, 60)]
    prompts = [
        continued(4 * i + j, context, some_ids(rng, (1, 2, 7, 40)[j]))
        for i, context in enumerate(contexts)
        for j in range(4)
    ]
    # One continuation begins another.
    prompts.append(continued(20, contexts[4], prompts[19].continuation[:5]))
    runner, finished = finished_by(model, prompts, max_num_seqs=6, max_num_batched_tokens=64)
    assert len(finished) == 21
    for item in finished.values():
        check(model, item)
        assert (item.text, item.token_ids, item.finish_reason) == ("", [], "stop")
    fed = runner.stats.prefill_tokens
    own = sum(len(each.continuation) for each in prompts)
    assert fed <= own + sum(map(len, contexts)) + 4 * len(contexts)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
@pytest.mark.parametrize("overlaps", [False, True])
def test_prompts_scored_beside_rows_that_are_not(kind, overlaps, tiny_model, monkeypatch):
    monkeypatch.setattr(batch, "OVERLAPS", overlaps)
    model = load(tiny_model(kind))
    rng = random.Random(8)
    begin = some_ids(rng, 20)
    prompts = []
    for i in range(20):
        ids = [*begin, *some_ids(rng, 1 + i)] if i % 2 else some_ids(rng, 1 + 3 * i)
        options = {"max_tokens": i % 7, "ignore_eos": True, "n": 1 + (i % 5 == 0)}
        made = with_scores(i, ids, i % 4, **options)
        prompts.append(prompt(i, ids, **options) if i % 3 == 0 else made)
    _, finished = finished_by(model, prompts, max_num_seqs=5, max_num_batched_tokens=48)
    plain = [replace(each, request=replace(each.request, prompt_logprobs=None)) for each in prompts]
    _, expected = finished_by(model, plain, max_num_seqs=1)
    assert finished.keys() == expected.keys()
    for name, item in finished.items():
        assert item.token_ids == expected[name].token_ids
        if item.prompt.is_scored:
            check(model, item)
        else:
            assert item.prompt_scores is None


def test_a_vocabulary_too_wide_for_a_chunk_is_scored_in_parts(tiny_model, monkeypatch):
    monkeypatch.setattr(scoring, "MAX_LOGITS", 7 * tiny.VOCAB_SIZE)
    model = load(tiny_model("llama"))
    rng = random.Random(9)
    prompts = [with_scores(i, some_ids(rng, 3 + 10 * i), 2, max_tokens=0) for i in range(5)]
    _, finished = finished_by(model, prompts, max_num_seqs=3)
    for item in finished.values():
        check(model, item)


def test_scores_start_over_after_a_failure(tiny_model):
    model = load(tiny_model("llama"))
    rng = random.Random(10)
    prompts = [
        *(with_scores(i, some_ids(rng, 9), 2, max_tokens=4, n=2) for i in range(6)),
        *(continued(6 + i, some_ids(rng, 9), some_ids(rng, 5)) for i in range(6)),
    ]
    for call in (1, 2, 3, 5):
        failing = Failing(model)
        runner = Engine(failing, model.tokenizer, max_num_seqs=6)
        failing.calls_left = call
        finished = run(runner, prompts)
        assert runner.stats.retries == 1
        assert len(finished) == 18
        for item in finished:
            check(model, item)
