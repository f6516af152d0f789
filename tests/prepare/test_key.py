"""Keys: what decides an answer changes them, and nothing else does."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.prepare import key, with_occurrence
from batchrun.records import Prompt, Request, Row, Sampling
from tests.prepare.conftest import chat, completion, preparer, tokenizer, turn

unit = st.floats(0.01, 1)
samplings = st.builds(
    Sampling,
    max_tokens=st.integers(0, 100),
    temperature=st.floats(0, 2),
    top_p=unit,
    top_k=st.integers(0, 50),
    min_p=unit,
    seed=st.none() | st.integers(0, 9),
    stop=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    ignore_eos=st.booleans(),
    n=st.integers(1, 4),
    presence_penalty=unit,
    frequency_penalty=unit,
    repetition_penalty=unit,
    logit_bias=st.dictionaries(st.integers(0, 9), unit, max_size=3).map(
        lambda bias: tuple(bias.items())
    ),
    logprobs=st.booleans(),
    top_logprobs=st.integers(0, 5),
)
DRAWN = Sampling(temperature=0.7, logprobs=True, seed=1)
OTHER: dict[str, Any] = {
    "max_tokens": 7,
    "temperature": 0.8,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 2,
    "stop": ("x",),
    "stop_token_ids": (3,),
    "ignore_eos": True,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": ((3, 1.0),),
    "logprobs": False,
    "top_logprobs": 2,
}


def key_of(sampling: Sampling, run_seed: int | None = None) -> str:
    return key("m", [1, 2], sampling, run_seed)


def test_a_key_stays_the_same_from_version_to_version() -> None:
    """A new key makes every finished row be computed again: change this only on purpose."""
    assert key("m", [1, 2], Sampling(), None) == "43132e63f54ef5fd8f661b99259595d2f06471df"


def test_every_field_but_n_is_covered() -> None:
    assert {field.name for field in fields(Sampling)} == OTHER.keys() | {"n"}


@pytest.mark.parametrize("name", OTHER)
def test_a_field_that_decides_changes_the_key(name: str) -> None:
    assert key_of(replace(DRAWN, **{name: OTHER[name]})) != key_of(DRAWN)


@given(samplings, st.integers(1, 9))
def test_the_number_of_choices_does_not_change_the_key(sampling: Sampling, n: int) -> None:
    assert key_of(replace(sampling, n=n)) == key_of(sampling)


@given(samplings, samplings, st.none() | st.integers(0, 9))
def test_equal_requests_have_equal_keys(a: Sampling, b: Sampling, run_seed: int | None) -> None:
    assert key_of(replace(a), run_seed) == key_of(a, run_seed)
    assert a != b or key_of(a, run_seed) == key_of(b, run_seed)


def test_numbers_written_otherwise_are_the_same() -> None:
    same = {key_of(Sampling(temperature=value)) for value in (1, 1.0, True)}
    assert len(same) == 1
    penalties = {key_of(Sampling(presence_penalty=value)) for value in (0, 0.0, -0.0)}
    assert penalties == {key_of(Sampling())}


def test_the_order_of_biases_does_not_matter() -> None:
    bias = ((3, 1.0), (1, 2.0))
    assert key_of(Sampling(logit_bias=bias)) == key_of(Sampling(logit_bias=bias[::-1]))


@pytest.mark.parametrize(
    "greedy",
    [
        Sampling(temperature=2.0, top_k=1),
        Sampling(temperature=0.0, top_p=0.5, min_p=0.2, top_k=40, seed=3),
    ],
)
def test_greedy_rows_share_a_key_however_they_say_it(greedy: Sampling) -> None:
    assert key_of(greedy, run_seed=7) == key_of(Sampling())


def test_top_logprobs_count_only_with_logprobs() -> None:
    assert key_of(Sampling(top_logprobs=3)) == key_of(Sampling())


def test_the_runs_seed_is_that_of_rows_without_one() -> None:
    drawn = replace(DRAWN, seed=None)
    assert key_of(drawn, 1) == key_of(DRAWN, 2) == key_of(DRAWN)
    assert len({key_of(drawn, 1), key_of(drawn, 2), key_of(drawn)}) == 3


def test_model_and_tokens_change_the_key() -> None:
    sampling = Sampling()
    keys = {
        key(model, ids, sampling, None)
        for model in ("m", "m2")
        for ids in ([1, 2], [2, 1], [1], [1, 2, 0])
    }
    assert len(keys) == 8


def test_row_and_form_do_not_change_the_key() -> None:
    using = preparer()
    prompt = using.prepare(chat(turn("user", "x")))
    ids = Request(Row(9, "other.csv", 3, "my-id", {"a": 1}), Sampling(), prompt=prompt.token_ids)
    text = completion(tokenizer().decode(prompt.token_ids))
    assert using.prepare(ids).key == using.prepare(text).key == prompt.key


def prompt_of(sampling: Sampling) -> Prompt:
    return preparer(run_seed=5).prepare(completion("x", sampling))


def test_repeated_draws_get_keys_of_their_own() -> None:
    prompt = prompt_of(Sampling(temperature=1.0))
    repeated = [with_occurrence(prompt, number) for number in range(4)]
    assert repeated[0] is prompt
    assert len({one.key for one in repeated}) == 4
    assert all(len(one.key) == len(prompt.key) for one in repeated)
    assert with_occurrence(prompt, 2) == repeated[2]
    assert repeated[2].token_ids == prompt.token_ids


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=1.0, top_k=1), Sampling(temperature=1.0, seed=0)],
)
def test_repeated_greedy_and_seeded_rows_share_their_key(sampling: Sampling) -> None:
    prompt = prompt_of(sampling)
    assert with_occurrence(prompt, 3) is prompt


digests = st.lists(st.binary(min_size=32, max_size=32), max_size=3)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(token_ids, digests, token_ids, digests)
def test_media_and_their_order_are_in_the_key(
    ids: list[int], media: list[bytes], other_ids: list[int], other_media: list[bytes]
) -> None:
    equal = (ids, media) == (other_ids, other_media)
    one, other = (
        key("m", token_ids, Sampling(), None, media=digests)
        for token_ids, digests in ((ids, media), (other_ids, other_media))
    )
    assert (one == other) == equal


def test_a_prompt_without_media_keeps_the_key_that_it_had() -> None:
    assert key("m", [1, 2], Sampling(), None) == key("m", [1, 2], Sampling(), None, media=[])
    assert key("m", [1, 2], Sampling(), None).startswith("43132e63f54e")
