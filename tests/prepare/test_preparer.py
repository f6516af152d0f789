"""Requests -> Prompts: tokens, limits, ids, failures."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.config import SourceConfig
from batchrun.errors import RowError
from batchrun.prepare import Preparer
from batchrun.records import Failure, Prompt, Request, Row, Sampling
from batchrun.source import read_requests
from batchrun.source.forms import read_request
from tests.prepare.conftest import chat, completion, preparer, text_of, tokenizer, turn


def error_of(request: Request, **options: Any) -> RowError:
    with pytest.raises(RowError) as caught:
        preparer(**options).prepare(request)
    return caught.value


def test_a_text_prompt_is_encoded_as_it_stands() -> None:
    assert text_of(completion("Hello é")) == "Hello é"


@pytest.mark.parametrize("text", ["Hello", "<s>Hello"])
def test_a_text_prompt_has_one_bos(text: str) -> None:
    assert text_of(completion(text), preparer(adds_bos=True)) == "<s>Hello"


def test_a_bos_that_the_tokenizer_would_not_add_is_the_users() -> None:
    assert text_of(completion("<s><s>Hello")) == "<s><s>Hello"


def test_token_ids_are_taken_as_they_are() -> None:
    prompt = preparer(adds_bos=True).prepare(completion([5, 0, 257]))
    assert prompt.token_ids == [5, 0, 257]


@pytest.mark.parametrize("request_", [completion([5, 200]), completion("\u00e9")])
def test_tokens_that_the_model_never_got_are_refused(request_: Request) -> None:
    prepared = preparer().prepare(request_).token_ids
    few = Preparer(tokenizer(), model="m", vocab_size=max(prepared))
    with pytest.raises(RowError, match="the tokenizer is not the model's own") as caught:
        few.prepare(request_)
    assert caught.value.code == "invalid_token_id"
    enough = Preparer(tokenizer(), model="m", vocab_size=max(prepared) + 1)
    assert enough.prepare(request_).token_ids == prepared


@pytest.mark.parametrize("token_id", [-1, 258, 2**40, 1.0, True, "5", None])
def test_ids_outside_the_vocabulary_are_refused(token_id: Any) -> None:
    error = error_of(completion([5, token_id]))
    assert (error.code, error.param) == ("invalid_token_id", "prompt")
    assert "0 to 257" in error.message


def test_prompts_share_their_ids_in_memory() -> None:
    using = preparer()
    one, other = (using.prepare(completion([int("257")])) for _ in range(2))
    assert all(a is b for a, b in zip(one.token_ids, other.token_ids, strict=True))


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (Sampling(logit_bias=((1, 2.0), (258, -100.0))), "logit_bias"),
        (Sampling(stop_token_ids=(1, -1)), "stop_token_ids"),
    ],
)
def test_sampling_ids_outside_the_vocabulary_are_refused(sampling: Sampling, param: str) -> None:
    error = error_of(completion("x", sampling))
    assert (error.code, error.param) == ("invalid_token_id", param)


@pytest.mark.parametrize(
    "request_",
    [completion(""), completion([])],
)
def test_an_empty_prompt_is_refused(request_: Request) -> None:
    error = error_of(request_)
    assert (error.code, error.param) == ("empty_prompt", "prompt")


def test_a_conversation_rendered_to_nothing_is_refused() -> None:
    assert error_of(chat(turn("user", "")), chat_template="{{ '' }}").code == "empty_prompt"


def test_one_token_is_a_prompt() -> None:
    assert preparer().prepare(completion("a")).token_ids == tokenizer().encode("a")


def test_text_that_the_tokenizer_refuses_fails_the_row() -> None:
    assert error_of(completion("\ud800")).code == "tokenizer_error"


def test_the_answer_is_cut_to_what_the_context_leaves() -> None:
    request = completion([1] * 10, Sampling(max_tokens=100))
    assert preparer(context_length=16).prepare(request).sampling.max_tokens == 6
    assert request.sampling.max_tokens == 100
    assert preparer(context_length=110).prepare(request).request is request
    assert preparer(context_length=None).prepare(request).request is request


@pytest.mark.parametrize(("length", "fits"), [(15, True), (16, False), (17, False)])
def test_the_context_has_room_for_one_more_token(length: int, fits: bool) -> None:
    prepared = preparer(context_length=16).attempt(completion([1] * length))
    assert isinstance(prepared, Prompt) == fits


@pytest.mark.parametrize(("length", "fits"), [(16, True), (17, False)])
def test_no_room_is_needed_for_no_answer(length: int, fits: bool) -> None:
    request = completion([1] * length, Sampling(max_tokens=0))
    assert isinstance(preparer(context_length=16).attempt(request), Prompt) == fits


def test_a_prompt_over_the_context_is_told_with_its_numbers() -> None:
    error = error_of(chat(turn("user", "x" * 40)), context_length=32)
    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    length = len(preparer().prepare(chat(turn("user", "x" * 40))).token_ids)
    assert f"{length} tokens" in error.message
    assert "32" in error.message
    assert "--max-model-len" in error.message


def test_rows_keep_their_order_and_earlier_failures() -> None:
    early = Failure(Row(1, "in.jsonl", 2), RowError("invalid_json_line", "bad"))
    rows: list[Request | Failure] = [completion("a"), early, completion(""), completion("b")]
    prepared = list(map(preparer().attempt, rows))
    assert [type(row) for row in prepared] == [Prompt, Failure, Failure, Prompt]
    assert prepared[1] is early
    assert [row.row for row in prepared] == [row.row for row in rows]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just('{"a": 1}'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "function", "arguments", "name"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)
calls = st.lists(st.dictionaries(st.sampled_from(["id", "function"]), json_values), max_size=2)
parts = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "input_text", "image_url"])},
        optional={"text": st.text(max_size=5) | json_values},
    ),
    max_size=2,
)
any_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "developer"])},
    optional={
        "content": st.text(max_size=5) | parts | json_values,
        "tool_calls": calls | json_values,
        "name": json_values,
    },
)


@given(
    st.lists(any_message, max_size=4),
    st.none() | st.lists(st.dictionaries(st.text(max_size=3), json_values), max_size=2),
    st.dictionaries(st.text(max_size=3), json_values, max_size=2),
)
def test_any_chat_that_the_source_takes_becomes_a_prompt_or_a_failure_and_stays_as_it_is(
    messages: list[dict[str, Any]], tools: Any, kwargs: dict[str, Any]
) -> None:
    columns = {"messages": messages, "tools": tools, "chat_template_kwargs": kwargs}
    try:
        request = read_request(Row(0, "in.jsonl", 1), columns, Sampling())
    except RowError:
        return
    before = copy.deepcopy(request)
    outcome = outcome_of(request)
    assert outcome_of(request) == outcome
    assert request == before


def outcome_of(request: Request) -> tuple[str, ...]:
    prepared = preparer().attempt(request)
    if isinstance(prepared, Failure):
        return prepared.error.code, prepared.error.message
    return (prepared.key,)


def test_tool_schemas_from_parquet_give_the_prompts_of_jsonl(tmp_path: Path) -> None:
    rows = [
        {"messages": [turn("user", "hello")], "tools": [tool]}
        for tool in (
            {"type": "function", "function": {"name": "f", "parameters": {"a": {"type": "int"}}}},
            {"type": "function", "function": {"name": "g", "parameters": {"b": {"min": 1}}}},
        )
    ]
    rows.append({"messages": [turn("assistant", "", tool_calls=[{"id": "1"}])]})
    jsonl, parquet = tmp_path / "in.jsonl", tmp_path / "in.parquet"
    jsonl.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), parquet)
    template = "{{ tools | tojson }}{{ messages | tojson }}"
    texts = [
        [text_of(request, preparer(template)) for request in requests_in(path)]
        for path in (jsonl, parquet)
    ]
    assert texts[0] == texts[1]
    assert '"min": 1' in texts[1][1]
    assert "null" not in texts[1][1]


def requests_in(path: Path) -> list[Request]:
    rows = list(read_requests(SourceConfig(inputs=(str(path),))))
    return [row for row in rows if isinstance(row, Request)]
