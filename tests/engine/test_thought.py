"""Reasoning that an answer begins with: when it is open, and that it is closed in time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.engine import Engine, batch
from batchrun.engine.thought import Thought
from batchrun.records import Completion, Thinking
from tests import tiny
from tests.engine.fakes import run
from tests.engine.guided import SHAPES, greedy_alone, guided
from tests.engine.test_alone import some_ids
from tests.engine.tinymodels import load

START, END = 310, 311
ENDS = frozenset([tiny.IM_END])


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30),
    st.booleans(),
    st.none() | st.integers(0, 9),
    st.sampled_from([(6,), (5, 6)]),
)
def test_every_token_is_either_the_reasonings_or_the_answers(tokens, is_open, budget, end):
    """Led where it leads; tokens 3 and then `end` mark the block."""
    thought = Thought(Thinking((3,), end, is_open, budget))
    taken: list[int] = []
    answer: list[int] = []
    for token in tokens:
        token = token if thought.forced is None else thought.forced
        if thought.is_over:
            answer.append(token)
        else:
            taken.append(token)
            answer += thought.take(token)
    if not is_open and tokens[0] != 3:
        assert answer[:1] == tokens[:1]
        return
    block = taken if is_open else taken[1:]
    if thought.is_over:
        assert tuple(block[-len(end) :]) == end
    if budget is not None:
        assert len(block) <= budget + len(end)
        assert thought.is_over or len(block) < budget + len(end)


def thinking(model, index, token_ids, shape, *, is_open=False, budget=None, **sampling):
    made = guided(model, index, token_ids, shape, **sampling)
    return replace(made, thinking=Thinking((START,), (END,), is_open, budget))


def answers(model, prompts, **options):
    finished = run(Engine(model, model.tokenizer, ENDS, **options), prompts)
    assert all(isinstance(item, Completion) for item in finished), finished
    return {(item.prompt.row.index, item.choice): item.token_ids for item in finished}


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_budget_closes_the_block_and_the_grammar_follows(overlaps, tiny_model, monkeypatch):
    monkeypatch.setattr(batch, "OVERLAPS", overlaps)
    model = load(tiny_model("llama"))
    rng = random.Random(3)
    prompts = []
    for i in range(14):
        ids, shape = some_ids(rng, 3 + i), SHAPES[i % len(SHAPES)]
        options = {"max_tokens": 60, "temperature": float(i % 2), "n": 1 + i % 3}
        if i % 3 == 2:
            prompts.append(guided(model, i, ids, shape, **options))
        else:
            prompts.append(thinking(model, i, ids, shape, is_open=True, budget=i, **options))
    together = answers(model, prompts, max_num_seqs=5)
    assert together == answers(model, prompts, max_num_seqs=1)
    for (index, _), tokens in together.items():
        prompt = prompts[index]
        if prompt.thinking is None:
            continue
        if tiny.IM_END in tokens[: index + 1] and prompt.grammar is None:
            continue  # it ended while it reasoned
        closed = tokens.index(END)
        assert closed <= index
        assert tiny.IM_END not in tokens[:closed]
        if prompt.grammar is not None:
            matcher = prompt.grammar.begin()
            assert matcher.consume_tokens(tokens[closed + 1 :])


def test_the_answer_after_reasoning_is_that_of_the_prompt_with_it(tiny_model):
    model = load(tiny_model("llama"))
    ids = some_ids(random.Random(4), 9)
    prompt = thinking(model, 0, ids, SHAPES[0], is_open=True, budget=6, max_tokens=60)
    tokens = answers(model, [prompt])[0, 0]
    closed = tokens.index(END) + 1
    after = guided(model, 1, [*ids, *tokens[:closed]], SHAPES[0], max_tokens=60 - closed)
    assert tokens[closed:] == greedy_alone(model, after)


def test_a_grammar_may_be_preceded_by_reasoning_or_not(tiny_model):
    model = load(tiny_model("llama"))
    ids = some_ids(random.Random(5), 9)
    for bias, thinks in ((100.0, True), (-100.0, False)):
        prompt = thinking(
            model, 0, ids, SHAPES[2], budget=3, max_tokens=30, logit_bias=((START, bias),)
        )
        tokens = answers(model, [prompt])[0, 0]
        assert (tokens[0] == START) is thinks
        closed = tokens.index(END) + 1 if thinks else 0
        matcher = prompt.grammar.begin()
        assert matcher.consume_tokens(tokens[closed:])


def test_reasoning_without_limit_or_grammar_is_left_alone(tiny_model):
    model = load(tiny_model("llama"))
    ids = some_ids(random.Random(6), 9)
    prompt = thinking(model, 0, ids, None, is_open=True, max_tokens=20)
    plain = guided(model, 0, ids, None, max_tokens=20)
    assert answers(model, [prompt]) == answers(model, [plain])
