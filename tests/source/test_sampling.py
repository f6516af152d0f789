from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.errors import RowError
from batchrun.records import Sampling
from batchrun.source.fields import Body
from batchrun.source.sampling import SAMPLING_FIELDS, read_sampling

VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def sampling_of(
    fields: dict[str, Any], defaults: Sampling | None = None, *, is_chat: bool = True
) -> Sampling:
    return read_sampling(Body(fields, "body."), defaults or Sampling(), is_chat=is_chat)


def test_absent_fields_are_the_defaults() -> None:
    defaults = Sampling(max_tokens=7, temperature=0.5, stop=("x",), seed=3)
    assert sampling_of({}, defaults) == defaults
    assert sampling_of({"temperature": 1}, defaults).stop == ("x",)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_tokens", 0, 0),
        ("max_tokens", 10**12, 10**12),
        ("max_tokens", 16.0, 16),
        ("temperature", 0, 0.0),
        ("temperature", 2.5, 2.5),
        ("top_p", 1, 1.0),
        ("top_p", 0.01, 0.01),
        ("top_k", -1, 0),
        ("top_k", 0, 0),
        ("top_k", 40, 40),
        ("min_p", 0, 0.0),
        ("min_p", 1, 1.0),
        ("seed", -5, -5),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("stop", "###", ("###",)),
        ("stop", ["\n\n", "a", "b", "c", "d", "e"], ("\n\n", "a", "b", "c", "d", "e")),
        ("stop", [], ()),
        ("stop_token_ids", [0, 7], (0, 7)),
        ("ignore_eos", True, True),
        ("n", 128, 128),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 2, 2.0),
        ("repetition_penalty", 1.3, 1.3),
        ("logit_bias", {"50256": -100, "7": 1.5}, ((7, 1.5), (50256, -100.0))),
        ("logit_bias", {}, ()),
        ("logprobs", True, True),
    ],
)
def test_field_is_read(name: str, value: Any, expected: Any) -> None:
    assert sampling_of({name: value}) == Sampling(**{name: expected})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", "16"),
        ("max_tokens", True),
        ("max_tokens", 2**63),
        ("max_completion_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        ("temperature", "hot"),
        ("temperature", False),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", []),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", 2**64),
        ("seed", "7"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a", 1]),
        ("stop", {"a": 1}),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("ignore_eos", 1),
        ("n", 0),
        ("n", 129),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"²": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": "x"}),
        ("logit_bias", [1, 2]),
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("best_of", 0),
    ],
)
def test_value_out_of_range_is_a_fault_of_its_field(name: str, value: Any) -> None:
    with pytest.raises(RowError, match=f"^body.{name} must be") as caught:
        sampling_of({name: value})
    assert (caught.value.code, caught.value.param) == ("invalid_request", f"body.{name}")


@given(st.dictionaries(st.sampled_from(sorted(SAMPLING_FIELDS)), VALUES), st.booleans())
def test_any_values_make_a_sampling_or_a_fault(fields: dict[str, Any], is_chat: bool) -> None:
    try:
        sampling = sampling_of(fields, is_chat=is_chat)
    except RowError:
        return
    assert isinstance(sampling.temperature, float)
    assert hash(sampling) == hash(sampling)


def test_message_shows_little_of_a_long_value() -> None:
    with pytest.raises(RowError) as caught:
        sampling_of({"temperature": "x" * 10_000})
    assert len(caught.value.message) < 120


def test_max_completion_tokens_is_max_tokens() -> None:
    assert sampling_of({"max_completion_tokens": 5}).max_tokens == 5
    assert sampling_of({"max_completion_tokens": 5, "max_tokens": 5}).max_tokens == 5


def test_max_tokens_and_max_completion_tokens_must_agree() -> None:
    with pytest.raises(RowError, match="differ"):
        sampling_of({"max_completion_tokens": 5, "max_tokens": 6})


def test_chat_logprobs_come_with_a_number_of_alternatives() -> None:
    sampling = sampling_of({"logprobs": True, "top_logprobs": 20})
    assert (sampling.logprobs, sampling.top_logprobs) == (True, 20)


def test_top_logprobs_need_logprobs() -> None:
    with pytest.raises(RowError, match="top_logprobs needs logprobs"):
        sampling_of({"top_logprobs": 3})
    assert sampling_of({"top_logprobs": 0}).logprobs is False
    assert sampling_of({"top_logprobs": 3}, Sampling(logprobs=True)).top_logprobs == 3


@pytest.mark.parametrize("number", [0, 5, 20])
def test_completion_logprobs_are_a_number(number: int) -> None:
    sampling = sampling_of({"logprobs": number}, is_chat=False)
    assert (sampling.logprobs, sampling.top_logprobs) == (True, number)


def test_completion_logprobs_false_asks_for_none() -> None:
    assert sampling_of({"logprobs": False}, Sampling(logprobs=True), is_chat=False) == Sampling()


@pytest.mark.parametrize("fields", [{"logprobs": True}, {"logprobs": 21}, {"top_logprobs": 2}])
def test_completion_logprobs_of_another_form_are_a_fault(fields: dict[str, Any]) -> None:
    with pytest.raises(RowError, match="logprobs"):
        sampling_of(fields, is_chat=False)


@pytest.mark.parametrize("fields", [{"best_of": 1}, {"best_of": 3, "n": 3}, {"best_of": 1, "n": 3}])
def test_best_of_that_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert sampling_of(fields).n == fields.get("n", 1)


def test_best_of_more_than_n_is_not_supported() -> None:
    with pytest.raises(RowError, match=r"body\.best_of") as caught:
        sampling_of({"best_of": 4, "n": 2})
    assert caught.value.code == "unsupported_parameter"
