"""How likely each choice is: exact against scoring each alone, in any company."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.engine import Engine, batch
from batchrun.engine.ballots import Ballot
from batchrun.records import Choice, Completion, Prompt, Request, Row, Sampling, Shape
from tests import tiny
from tests.engine.fakes import run
from tests.engine.guided import SHAPES, Failing, grammars, guided
from tests.engine.test_alone import some_ids
from tests.engine.tinymodels import load

ENDS = frozenset([tiny.ENDOFTEXT, tiny.IM_END])
LABELS = [
    ["positive", "negative", "neutral"],
    ["yes", "no"],
    ["no", "nothing", "not at all"],
    ["a"],
    ["the quick", "the brown fox", "the lazy dog", "x", "é"],
]


def labelled(model, index, token_ids, texts, label="only", **sampling):
    shape = Shape("choice", json.dumps(texts))
    prompt = guided(model, index, token_ids, shape, **sampling)
    request = replace(prompt.request, label=label)
    return replace(prompt, request=request, choices=grammars(model).choices(shape))


def probabilities_alone(model, prompt):
    """One whole forward pass for each choice."""
    texts = [choice.text for choice in prompt.choices]
    ends_count = any(b.startswith(a) for a in texts for b in texts if a != b)
    totals = []
    for choice in prompt.choices:
        ids = [*prompt.token_ids, *choice.token_ids]
        logits = model.module(mx.array([ids]))[0].astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        start = len(prompt.token_ids) - 1
        total = sum(logprobs[start + i, t].item() for i, t in enumerate(choice.token_ids))
        if ends_count:
            total += math.log(sum(math.exp(logprobs[-1, end].item()) for end in ENDS))
        totals.append(total)
    weights = [math.exp(total - max(totals)) for total in totals]
    return [weight / sum(weights) for weight in weights]


def finished_by(model, prompts, **options):
    finished = run(Engine(model, model.tokenizer, ENDS, **options), prompts)
    assert all(isinstance(item, Completion) for item in finished), finished
    assert len({(item.prompt.row.index, item.choice) for item in finished}) == len(finished)
    return {(item.prompt.row.index, item.choice): item for item in finished}


def check_exact(model, item):
    expected = probabilities_alone(model, item.prompt)
    assert item.choice_probs == pytest.approx(expected, abs=1e-5)
    assert sum(item.choice_probs) == pytest.approx(1)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
@pytest.mark.parametrize("overlaps", [False, True])
def test_labels_equal_scoring_each_choice_alone(kind, overlaps, tiny_model, monkeypatch):
    monkeypatch.setattr(batch, "OVERLAPS", overlaps)
    model = load(tiny_model(kind))
    rng = random.Random(5)
    prompts = [
        labelled(model, i, some_ids(rng, rng.randint(1, 40)), LABELS[i % len(LABELS)])
        for i in range(15)
    ]
    finished = finished_by(model, prompts, max_num_seqs=6, max_num_batched_tokens=64)
    assert len(finished) == len(prompts)
    for item in finished.values():
        check_exact(model, item)
        best = item.prompt.choices[item.choice_probs.index(max(item.choice_probs))]
        assert (item.text, item.token_ids) == (best.text, list(best.token_ids))
        assert item.finish_reason == "stop"


@pytest.mark.parametrize("overlaps", [False, True])
def test_answers_wait_for_the_probabilities_of_their_choices(overlaps, tiny_model, monkeypatch):
    monkeypatch.setattr(batch, "OVERLAPS", overlaps)
    model = load(tiny_model("llama"))
    rng = random.Random(6)
    prompts = []
    for i in range(18):
        ids = some_ids(rng, rng.randint(1, 40))
        if i % 3 == 2:
            prompts.append(guided(model, i, ids, SHAPES[i % len(SHAPES)], max_tokens=20))
            continue
        options = {"n": 1 + i % 2 * 2, "temperature": 1.5 * (i % 2), "logprobs": i % 4 == 0}
        prompts.append(
            labelled(model, i, ids, LABELS[i % len(LABELS)], "also", max_tokens=20, **options)
        )
    finished = finished_by(model, prompts, max_num_seqs=5)
    plain = [replace(prompt, choices=()) for prompt in prompts]
    for name, item in finished_by(model, plain, max_num_seqs=1).items():
        assert finished[name].token_ids == item.token_ids
        assert finished[name].logprobs == pytest.approx(item.logprobs) or item.logprobs
    for item in finished.values():
        if item.prompt.choices:
            check_exact(model, item)
        else:
            assert item.choice_probs is None


def test_labels_of_several_choices_and_without_tokens_to_write(tiny_model):
    model = load(tiny_model("llama"))
    several = labelled(model, 0, [5, 6], LABELS[0], n=3)
    nothing = labelled(model, 1, [5, 7], LABELS[0], "also", max_tokens=0)
    finished = finished_by(model, [several, nothing])
    assert sorted(finished) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert len({item.text for (index, _), item in finished.items() if index == 0}) == 1
    assert finished[1, 0].text == ""
    check_exact(model, finished[1, 0])


def test_labels_start_over_after_a_failure(tiny_model):
    model = load(tiny_model("llama"))
    rng = random.Random(7)
    prompts = [
        labelled(model, i, some_ids(rng, 9), LABELS[i % len(LABELS)], "also", max_tokens=9)
        for i in range(10)
    ]
    expected = finished_by(model, prompts)
    for call in (1, 3, 6):
        failing = Failing(model)
        runner = Engine(failing, model.tokenizer, ENDS, max_num_seqs=6)
        failing.calls_left = call
        again = {item.prompt.row.index: item for item in run(runner, prompts)}
        assert runner.stats.retries == 1
        for (index, _), item in expected.items():
            assert again[index].token_ids == item.token_ids
            assert again[index].choice_probs == pytest.approx(item.choice_probs, abs=1e-5)


@given(
    paths=st.lists(
        st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple),
        min_size=1,
        max_size=6,
        unique=True,
    )
)
def test_walks_ask_for_every_token_once(paths):
    choices = tuple(Choice("".join(map(str, path)), path) for path in paths)
    request = Request(Row(0, "in", 1), Sampling(), prompt="a", label="only")
    ballot = Ballot(Prompt(request, [1], "key", choices=choices), [9])
    asked = [
        (*walk.path[:step], group)
        for walk in ballot.walks
        for step in range(walk.num_steps)
        for group in walk.asked_at(step)
    ]
    assert len(set(asked)) == len(asked)
    overlap = any(b[: len(a)] == a for a in paths for b in paths if a != b)
    ended = [(*((t,) for t in path), *([(9,)] if overlap else [])) for path in paths]
    assert set(asked) == {path[: n + 1] for path in ended for n in range(len(path))}
    assert all(walk.asked[-1] for walk in ballot.walks)
