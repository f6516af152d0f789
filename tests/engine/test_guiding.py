"""Answers that follow grammars: alone, beside others, and whatever else their rows ask for."""

from __future__ import annotations

import json
import random
import re

import jsonschema_rs
import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchrun.engine import Engine, batch
from batchrun.records import Completion, Failure, Shape
from tests import tiny
from tests.engine.fakes import by_row, run
from tests.engine.guided import SHAPES, Failing, follows, greedy_alone, guided, schema
from tests.engine.test_alone import some_ids
from tests.engine.tinymodels import load, logits_alone

LOADED = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ENDS = frozenset([tiny.IM_END])


def mixed(model, count, seed=0, **sampling):
    rng = random.Random(seed)
    return [
        guided(
            model,
            i,
            some_ids(rng, rng.randint(1, 40)),
            SHAPES[i % len(SHAPES)],
            **({"max_tokens": rng.randint(1, 60)} | sampling),
        )
        for i in range(count)
    ]


def answers(model, prompts, **options):
    runner = Engine(model, model.tokenizer, ENDS, **options)
    finished = run(runner, prompts)
    assert all(isinstance(item, Completion) for item in finished), finished
    return {(item.prompt.row.index, item.choice): item for item in finished}


def ids(finished):
    return {name: item.token_ids for name, item in finished.items()}


@pytest.mark.parametrize("kind", ["llama", "gemma3", "lfm2"])
@pytest.mark.parametrize("overlaps", [False, True])
def test_guided_rows_beside_free_ones_equal_themselves_alone(
    kind, overlaps, tiny_model, monkeypatch
):
    monkeypatch.setattr(batch, "OVERLAPS", overlaps)
    model = load(tiny_model(kind))
    prompts = mixed(model, 21)
    together = answers(model, prompts, max_num_seqs=5, max_num_batched_tokens=64)
    assert ids(together) == ids(answers(model, prompts, max_num_seqs=1))
    for prompt in prompts:
        if prompt.grammar is not None:
            assert together[prompt.row.index, 0].token_ids == greedy_alone(model, prompt)


@pytest.mark.parametrize("overlaps", [False, True])
def test_everything_else_that_a_row_may_ask_for_goes_together_with_a_shape(
    overlaps, tiny_model, monkeypatch
):
    monkeypatch.setattr(batch, "OVERLAPS", overlaps)
    model = load(tiny_model("llama"))
    kinds = [
        {"temperature": 1.0, "n": 3},
        {"temperature": 1.5, "top_k": 3, "seed": 3},
        {"temperature": 2.0, "top_p": 0.5, "min_p": 0.1},
        {"repetition_penalty": 1.4, "frequency_penalty": 0.5},
        {"logit_bias": ((40, -100.0), (7, 100.0)), "logprobs": True, "top_logprobs": 3},
        {"ignore_eos": True},
        {"stop": ("e", "1")},
    ]
    rng = random.Random(4)
    prompts = [
        guided(model, i, some_ids(rng, 9), shape, max_tokens=50, **kinds[i % len(kinds)])
        for i, shape in enumerate(SHAPES * 3)
    ]
    together = answers(model, prompts, max_num_seqs=6)
    alone = answers(model, prompts, max_num_seqs=1)
    assert ids(together) == ids(alone)
    assert {k: v.text for k, v in together.items()} == {k: v.text for k, v in alone.items()}
    for (index, choice), item in together.items():
        if prompts[index].grammar is not None:
            assert follows(model, prompts[index], item.token_ids), (index, choice, item.text)
    assert len({tuple(together[0, choice].token_ids) for choice in range(3)}) > 1


def test_a_whole_answer_ends_at_once(tiny_model):
    model = load(tiny_model("llama"))
    shape = Shape("regex", "[0-9]{4}")
    for ignore_eos in (False, True):
        prompt = guided(model, 0, [5, 6], shape, max_tokens=50, ignore_eos=ignore_eos)
        item = answers(model, [prompt])[0, 0]
        assert re.fullmatch("[0-9]{4}", item.text)
        assert item.finish_reason == "stop"


def test_the_last_token_of_a_whole_answer_may_be_max_tokens(tiny_model):
    model = load(tiny_model("llama"))
    exact = guided(model, 0, [5, 6], Shape("regex", "[0-9]{4}"), max_tokens=4)
    short = guided(model, 1, [5, 6], Shape("regex", "[0-9]{4}"), max_tokens=3)
    finished = answers(model, [exact, short])
    assert finished[0, 0].finish_reason == "stop"
    assert finished[1, 0].finish_reason == "length"


def test_a_choice_that_begins_another_can_be_either(tiny_model):
    model = load(tiny_model("llama"))
    shape = Shape("choice", '["no", "nothing"]')
    prompts = [
        guided(model, i, [5, 6 + i], shape, max_tokens=20, temperature=3.0) for i in range(40)
    ]
    assert {item.text for item in answers(model, prompts).values()} == {"no", "nothing"}


def test_guided_rows_start_over_after_a_failure(tiny_model):
    model = load(tiny_model("llama"))
    prompts = mixed(model, 14, temperature=0.9)
    expected = ids(answers(model, prompts, max_num_seqs=1))
    for call in (1, 9, 25):
        failing = Failing(model)
        runner = Engine(failing, model.tokenizer, ENDS, max_num_seqs=6)
        failing.calls_left = call
        finished = run(runner, prompts)
        assert runner.stats.retries == 1
        assert by_row(finished) == {index: tokens for (index, _), tokens in expected.items()}


def test_a_grammar_that_fails_in_the_middle_fails_its_row_alone(tiny_model, monkeypatch):
    model = load(tiny_model("llama"))
    prompts = mixed(model, 7, max_tokens=20)
    expected = ids(answers(model, prompts))

    class Broken:
        """A grammar whose matcher has forgotten what it allowed."""

        vocab_size = tiny.VOCAB_SIZE

        def begin(self):
            matcher = prompts[0].grammar.begin()
            matcher.consume_token(310)
            return matcher

    object.__setattr__(prompts[2], "grammar", Broken())
    finished = run(Engine(model, model.tokenizer, ENDS, max_num_seqs=4), prompts)
    (failure,) = (item for item in finished if isinstance(item, Failure))
    assert (failure.row.index, failure.error.code) == (2, "grammar_failed")
    rest = by_row([item for item in finished if isinstance(item, Completion)])
    assert rest == {index: ids for (index, _), ids in expected.items() if index != 2}


def test_ids_past_the_tokenizers_vocabulary_are_never_allowed_but_free_rows_keep_them(tiny_model):
    model = load(tiny_model("llama", vocab_size=512))
    padded = tuple((token, 90.0) for token in range(400, 512))
    prompts = [
        guided(model, 0, [5, 6], SHAPES[0], max_tokens=40, logit_bias=padded),
        guided(model, 1, [5, 6], None, max_tokens=8, logit_bias=padded),
    ]
    finished = answers(model, prompts)
    assert max(finished[0, 0].token_ids) < 320
    assert min(finished[1, 0].token_ids) >= 400


# ---------------------------------------------------------------- in company


def test_guided_rows_join_while_a_long_prompt_is_prefilled(tiny_model):
    model = load(tiny_model("llama"))
    rng = random.Random(13)
    long = guided(model, 0, some_ids(rng, 2000), None, max_tokens=8, ignore_eos=True)
    odd = [{"repetition_penalty": 1.3}, {"logit_bias": ((9, 8.0),)}, {"frequency_penalty": 0.6}, {}]
    late = [
        guided(model, i, some_ids(rng, 6 + i), SHAPES[0], max_tokens=40, **kind)
        for i, kind in enumerate(odd, start=1)
    ]
    alone = ids(answers(model, [long, *late], max_num_seqs=1))
    prompts = [late[0], long, *late[1:]]
    together = answers(model, prompts, max_num_seqs=3, max_num_batched_tokens=256)
    assert ids(together) == alone


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_forbidden_first_token_never_appears_in_a_late_guided_row(
    overlaps, tiny_model, monkeypatch
):
    monkeypatch.setattr(batch, "OVERLAPS", overlaps)
    model = load(tiny_model("llama"))
    rng = random.Random(11)
    prompts = [
        guided(model, i, some_ids(rng, 5), None, max_tokens=n) for i, n in enumerate([2, 4, 20])
    ]
    ids_, shape = some_ids(rng, 6), Shape("regex", "[a-z]{12}")
    natural = greedy_alone(model, guided(model, 3, ids_, shape, max_tokens=1))[0]
    late = guided(model, 3, ids_, shape, max_tokens=12, logit_bias=((natural, -100.0),))
    answer = answers(model, [*prompts, late], max_num_seqs=3)[3, 0]
    assert natural not in answer.token_ids
    assert re.fullmatch("[a-z]{1,12}", answer.text)


def test_logprobs_of_guided_rows_are_the_models_own(tiny_model):
    """Before the grammar: what it ruled out keeps its share, and may be the likeliest."""
    model = load(tiny_model("qwen3"))
    rng = random.Random(5)
    prompts = [
        guided(
            model,
            i,
            some_ids(rng, 3 + 9 * i),
            SHAPES[i],
            max_tokens=9,
            logprobs=i != 1,
            top_logprobs=2 * i if i != 1 else 0,
        )
        for i in range(4)
    ]
    for (index, _), item in answers(model, prompts, max_num_seqs=4).items():
        if index == 1:
            assert item.logprobs is None
            continue
        assert [score.token_id for score in item.logprobs] == item.token_ids
        for step, score in enumerate(item.logprobs):
            logits = logits_alone(model, [*item.prompt.token_ids, *item.token_ids[:step]])
            logprobs = (logits - mx.logsumexp(logits)).tolist()
            best = sorted(logprobs, reverse=True)[: 2 * index]
            assert score.logprob == pytest.approx(logprobs[score.token_id], abs=1e-3)
            assert [value for _, value in score.top] == pytest.approx(best, abs=1e-3)


def test_choices_of_a_guided_row_are_drawn_apart(tiny_model):
    model = load(tiny_model("llama"))
    shape = Shape("regex", "[a-z]{8}")
    prompt = guided(model, 0, [5, 6, 7], shape, max_tokens=12, temperature=2.0, n=6)
    texts = [item.text for item in answers(model, [prompt], max_num_seqs=4).values()]
    assert len(texts) == 6
    assert len(set(texts)) > 3


# ---------------------------------------------------------------- any shape

SCALARS = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-500, 500),
        st.integers(0, 700),
    ),
    st.builds(lambda size: {"type": "string", "maxLength": size}, st.integers(0, 5)),
    st.lists(st.text(max_size=4), min_size=1, max_size=3, unique=True).map(
        lambda values: {"enum": values}
    ),
    st.just({"type": "number"}),
)


def nested(inner):
    return st.one_of(
        st.builds(
            lambda item, size: {"type": "array", "items": item, "maxItems": size},
            inner,
            st.integers(0, 3),
        ),
        st.builds(
            lambda fields, needed: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields)[:needed],
                "additionalProperties": False,
            },
            st.dictionaries(st.text('abé"\\ ', min_size=1, max_size=3), inner, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
    )


@pytest.mark.parametrize("kind", ["llama", "mamba2"])
@LOADED
@given(
    schemas=st.lists(st.recursive(SCALARS, nested, max_leaves=6), min_size=1, max_size=6),
    temperature=st.sampled_from([0.0, 1.0, 3.0]),
)
def test_any_schema_gives_a_valid_instance_or_a_stated_truncation(
    kind, schemas, temperature, tiny_model
):
    model = load(tiny_model(kind))
    prompts = [
        guided(model, i, [9 + i], schema(each), max_tokens=80, temperature=temperature)
        for i, each in enumerate(schemas)
    ]
    for (index, _), item in answers(model, prompts, max_num_seqs=3).items():
        if item.finish_reason == "stop":
            value = json.loads(item.text)
            if "inf" not in repr(value):  # 1e999 is a number to the grammar, and to no reader
                jsonschema_rs.validate(schemas[index], value)
        else:
            assert len(item.token_ids) == 80


REGEXES = st.recursive(
    st.sampled_from(["a", "[b-d]", "[0-9]+", "é", "x?", "\\.", "(no|yes)"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@LOADED
@given(
    regexes=st.lists(REGEXES, min_size=1, max_size=6),
    temperature=st.sampled_from([0.0, 1.0, 3.0]),
)
def test_any_regex_is_matched_or_cut_off(regexes, temperature, tiny_model):
    model = load(tiny_model("llama"))
    prompts = [
        guided(model, i, [9 + i], Shape("regex", each), max_tokens=40, temperature=temperature)
        for i, each in enumerate(regexes)
    ]
    for (index, _), item in answers(model, prompts, max_num_seqs=3).items():
        if item.finish_reason == "stop":
            assert re.fullmatch(regexes[index], item.text), (regexes[index], item.text)
