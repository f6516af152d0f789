"""Every row's own sampling, in any company, against the same arithmetic in plain numpy."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchrun.engine.row import Sequence
from batchrun.engine.sampling import Sampler, uniform
from batchrun.records import Sampling
from tests.engine.fakes import prompt

VOCAB = 24
# Float32 sums in another order may differ by this much.
ROUNDING = 1e-4

PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        "top_k": st.integers(0, 5),
        "top_p": st.sampled_from([1.0, 0.9, 0.5, 0.01]),
        "min_p": st.sampled_from([0.0, 0.1, 0.9]),
        "presence_penalty": st.sampled_from([0.0, 0.7, -1.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.4]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
        "logit_bias": st.sampled_from([(), ((3, 100.0),), ((0, -100.0), (5, 2.5))]),
        "logprobs": st.booleans(),
        "top_logprobs": st.integers(0, 4),
    },
)


def sequence(index: int, sampling: dict[str, Any], choice: int = 0) -> Sequence:
    return Sequence(prompt(index, [1, 2, 2, index % VOCAB], **sampling), choice)


def adjusted(logits: np.ndarray, row: Sequence) -> np.ndarray:
    """Logits with bias and penalties, one token at a time."""
    sampling = row.prompt.sampling
    values = logits.astype(np.float64)
    for token, bias in sampling.logit_bias:
        values[token] += bias
    said = Counter(row.token_ids)
    for token in set(row.prompt.token_ids) | set(row.token_ids):
        penalty = sampling.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token, times in said.items():
        values[token] -= sampling.frequency_penalty * times + sampling.presence_penalty
    return values


def kept(values: np.ndarray, sampling: Sampling, slack: float) -> np.ndarray:
    """Probabilities after temperature, top-k, top-p and min-p; `slack` loosens the last two."""
    weights = np.exp((values - values.max()) / sampling.temperature)
    order = np.argsort(-weights, kind="stable")
    if sampling.top_k:
        weights[weights < weights[order[sampling.top_k - 1]]] = 0
    before = 0.0
    lowest = 0.0
    for token in order:
        if weights[token] and before < (sampling.top_p + slack) * weights.sum():
            lowest = weights[token]
        before += weights[token]
    weights[weights < max(lowest, sampling.min_p - slack)] = 0
    return weights / weights.sum()


def may_be(token: int, logits: np.ndarray, row: Sequence) -> bool:
    """Whether `token` is the row's next by its own parameters, rounding aside."""
    values, sampling = adjusted(logits, row), row.prompt.sampling
    if sampling.is_greedy:
        return bool(values[token] >= values.max() - ROUNDING)
    draw = uniform(row.prompt.key, row.choice, len(row.token_ids))
    for slack in (-ROUNDING, 0.0, ROUNDING):
        chances = kept(values, sampling, slack)
        end = chances[: token + 1].sum()
        if chances[token] and end - chances[token] - ROUNDING <= draw <= end + ROUNDING:
            return True
    return False


@settings(max_examples=120)
@given(
    parameters=st.lists(st.none() | PARAMETERS, min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    rebuilt=st.sets(st.integers(1, 4)),
)
def test_each_row_gets_the_token_of_its_own_parameters(
    parameters: list[dict[str, Any] | None], seed: int, rebuilt: set[int]
) -> None:
    """Over several steps, with the sampler built anew at some as it is when rows come and go.
    A place without parameters is one whose row has left."""
    random = np.random.default_rng(seed)
    rows = [None if given is None else sequence(i, given) for i, given in enumerate(parameters)]
    sampler = Sampler(rows, VOCAB)
    for step in range(5):
        if step in rebuilt:
            sampler = Sampler(rows, VOCAB)
        logits = random.normal(0, 3, (len(rows), VOCAB)).astype(np.float32)
        sampled = sampler(mx.array(logits))
        tokens = sampled.tokens.tolist()
        for place, row in enumerate(rows):
            if row is not None:
                assert may_be(tokens[place], logits[place], row), (step, place)
                row.token_ids.append(tokens[place])
                row.num_started += 1
        if sampled.scores is not None:
            check_scores(sampled.scores, logits, tokens)
        asked = [row for row in rows if row is not None and row.prompt.sampling.logprobs]
        assert (sampled.scores is not None) == bool(asked)


def check_scores(scores: Any, logits: np.ndarray, tokens: list[int]) -> None:
    """Log-probabilities are the model's own, before bias, penalties and temperature."""
    for index, place in enumerate(scores.rows):
        own = logits[place].astype(np.float64)
        logprobs = own - own.max() - math.log(np.exp(own - own.max()).sum())
        assert scores.chosen[index].item() == pytest.approx(logprobs[tokens[place]], abs=ROUNDING)
        top = [value.item() for value in scores.top[index]]
        assert top == pytest.approx(sorted(logprobs, reverse=True)[: len(top)], abs=ROUNDING)


def test_a_temperature_of_0_and_a_top_k_of_1_are_the_same() -> None:
    rows = [sequence(0, {}), sequence(1, {"temperature": 2.0, "top_k": 1}), sequence(2, {})]
    logits = np.random.default_rng(4).normal(0, 1, (1, VOCAB)).repeat(3, axis=0)
    tokens = Sampler(rows, VOCAB)(mx.array(logits, dtype=mx.float32)).tokens.tolist()
    assert len(set(tokens)) == 1


def test_a_neighbours_top_p_takes_no_tokens_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many tokens a running sum meets the total before its end: not even then."""
    monkeypatch.setattr("batchrun.engine.sampling.uniform", lambda *_: 0.0)
    logits = np.sort(np.random.default_rng(0).normal(0, 2, 100_000)).astype(np.float32)
    rows = [sequence(0, {"temperature": 1.0}), sequence(1, {"temperature": 1.0, "top_p": 0.9})]
    alone = Sampler(rows[:1], len(logits))(mx.array(logits[None])).tokens.tolist()
    together = Sampler(rows, len(logits))(mx.array(np.stack([logits, logits]))).tokens.tolist()
    assert together[:1] == alone == [0]


def test_a_bias_on_an_id_that_the_model_lacks_is_nobodys() -> None:
    rows = [sequence(0, {"logit_bias": ((VOCAB, 100.0), (3, 5.0))}), sequence(1, {})]
    tokens = Sampler(rows, VOCAB)(mx.eye(VOCAB)[:2]).tokens.tolist()
    assert tokens == [3, 1]


def test_half_precision_logits_are_sampled_in_float32() -> None:
    """In bfloat16 the probabilities of many tokens would add up to less than the last of them."""
    rows = [sequence(i, {"temperature": 1.0}) for i in range(64)]
    tokens = Sampler(rows, 4096)(mx.zeros((64, 4096), dtype=mx.bfloat16)).tokens.tolist()
    expected = [int(uniform(row.prompt.key, 0, 0) * 4096) for row in rows if row is not None]
    assert all(abs(one - other) <= 1 for one, other in zip(tokens, expected, strict=True))


def test_draws_follow_the_distribution_and_differ_by_row_choice_and_step() -> None:
    draws = [
        uniform(f"key-{i}", choice, step)
        for i in range(20)
        for choice in range(10)
        for step in range(10)
    ]
    assert len(set(draws)) > 1990
    assert all(0 <= draw < 1 for draw in draws)
    counts = np.histogram(draws, bins=10, range=(0, 1))[0]
    assert counts.min() > 150
    assert counts.max() < 250


@pytest.mark.parametrize("temperature", [1e-9, 1e-38, 1e-45, 1e-300])
def test_the_lowest_temperatures_take_the_likeliest_token(temperature: float) -> None:
    logits = np.random.default_rng(5).normal(scale=30, size=(1, VOCAB)).astype(np.float32)
    row = sequence(0, {"temperature": temperature, "seed": 1})
    assert Sampler([row], VOCAB)(mx.array(logits)).tokens.tolist() == [int(logits.argmax())]
