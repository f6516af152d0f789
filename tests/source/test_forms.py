from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.errors import RowError
from batchrun.records import Request, Row, Sampling
from batchrun.source.fields import UNSUPPORTED_FIELDS
from batchrun.source.forms import KNOWN_FIELDS, read_custom_id, read_request

ROW = Row(index=0, file="a.jsonl", line=1)
USER = [{"role": "user", "content": "hi"}]
CHAT = {"messages": USER}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner)
    ),
    max_leaves=6,
)


def request_of(columns: dict[str, Any], defaults: Sampling | None = None) -> Request:
    return read_request(ROW, columns, defaults or Sampling())


def fault_of(columns: dict[str, Any]) -> RowError:
    with pytest.raises(RowError) as caught:
        request_of(columns)
    return caught.value


def in_body(**fields: Any) -> dict[str, Any]:
    return {"body": CHAT | fields}


def test_batch_line_is_a_chat_request() -> None:
    request = request_of(
        {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "m",
                "messages": USER,
                "max_tokens": 9,
                "tools": [TOOL],
                "chat_template_kwargs": {"enable_thinking": False},
            },
        }
    )
    assert request == Request(
        row=ROW,
        sampling=Sampling(max_tokens=9),
        messages=USER,
        tools=[TOOL],
        template_kwargs={"enable_thinking": False},
        model="m",
    )


def test_batch_line_is_a_completion_request() -> None:
    request = request_of(
        {"method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "logprobs": 2}}
    )
    assert request.prompt == "a"
    assert not request.is_chat
    assert request.sampling.top_logprobs == 2


@pytest.mark.parametrize("columns", [{"body": CHAT}, {"custom_id": "a", "body": CHAT}, CHAT])
def test_chat_without_url_is_known_by_its_messages(columns: dict[str, Any]) -> None:
    assert request_of(columns).messages == USER


@pytest.mark.parametrize("prompt", ["hi", [1, 2, 3]])
def test_prompt_is_text_or_token_ids(prompt: Any) -> None:
    assert request_of({"prompt": prompt}).prompt == prompt
    assert request_of({"body": {"prompt": prompt}}).prompt == prompt


def test_bare_row_has_sampling_fields_among_columns_of_data() -> None:
    row = {"id": 5, "label": "x", "url": "https://example.org", "temperature": 0.5, **CHAT}
    request = request_of(row)
    assert request.sampling.temperature == 0.5
    assert request.messages == USER


@pytest.mark.parametrize(
    ("column", "meant"),
    [("max_token", "max_tokens"), ("temprature", "temperature"), ("Top_p", None), ("id", None)],
)
def test_column_of_a_bare_row_that_looks_like_a_slip_is_a_fault(
    column: str, meant: str | None
) -> None:
    columns = CHAT | {column: 3}
    if meant is None:
        assert request_of(columns).sampling == Sampling()
    else:
        error = fault_of(columns)
        assert (error.code, error.param) == ("unknown_field", column)
        assert f"did you mean {meant}?" in error.message


def test_nulls_are_absent_fields() -> None:
    columns = {
        "url": None,
        "method": None,
        "params": None,
        "messages": None,
        "body": {
            "messages": [{"role": "user", "content": "hi", "tool_calls": None, "name": None}],
            "prompt": None,
            "temperature": None,
            "stop": None,
            "response_format": None,
            "wrong_name": None,
            "stream": None,
            "chat_template_kwargs": {"enable_thinking": None},
        },
    }
    assert request_of(columns) == Request(row=ROW, sampling=Sampling(), messages=USER)


def test_null_fill_of_two_tool_schemas_is_dropped() -> None:
    filled = {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "b": None}},
        },
    }
    request = request_of(CHAT | {"tools": [filled]})
    assert request.tools is not None
    assert request.tools[0]["function"]["parameters"]["properties"] == {"a": {"type": "string"}}


def test_null_content_beside_tool_calls_is_empty_text() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {}}]}
    request = request_of({"messages": [*USER, message]})
    assert request.messages is not None
    assert request.messages[1] == message | {"content": ""}


@pytest.mark.parametrize(
    ("columns", "code", "param"),
    [
        (
            {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"},
            "missing_required_parameter",
            "body",
        ),
        ({"custom_id": "a"}, "missing_required_parameter", "messages"),
        ({}, "missing_required_parameter", "messages"),
        ({"body": "text"}, "invalid_request", "body"),
        ({"body": [1]}, "invalid_request", "body"),
        ({"params": 3}, "invalid_request", "params"),
        ({"body": {}}, "missing_required_parameter", "body.messages"),
        (
            {"body": {"prompt": "a"}, "url": "/v1/chat/completions"},
            "missing_required_parameter",
            "body.messages",
        ),
        ({"body": CHAT, "url": "/v1/completions"}, "missing_required_parameter", "body.prompt"),
        ({"body": CHAT | {"prompt": "a"}}, "invalid_request", "body.messages"),
        (CHAT | {"prompt": "a"}, "invalid_request", "prompt"),
        (CHAT | {"body": CHAT}, "invalid_request", "messages"),
        ({"body": CHAT, "method": "GET"}, "invalid_request", "method"),
        ({"body": CHAT, "url": "/v1/embeddings"}, "invalid_url", "url"),
        ({"body": CHAT, "url": "/v2/chat"}, "invalid_url", "url"),
        ({"body": CHAT, "url": 5}, "invalid_url", "url"),
        ({"prompt": ""}, "invalid_request", "prompt"),
        ({"prompt": []}, "invalid_request", "prompt"),
        ({"prompt": ["a", "b"]}, "invalid_request", "prompt"),
        ({"prompt": [[1], [2]]}, "invalid_request", "prompt"),
        ({"prompt": [1, -1]}, "invalid_request", "prompt"),
        ({"prompt": [True]}, "invalid_request", "prompt"),
        ({"prompt": 5}, "invalid_request", "prompt"),
        ({"messages": []}, "invalid_request", "messages"),
        ({"prompt": "a", "tools": [TOOL]}, "invalid_request", "tools"),
        ({"prompt": "a", "tool_choice": "required"}, "invalid_request", "tool_choice"),
        (
            {"prompt": "a", "chat_template_kwargs": {"x": 1}},
            "invalid_request",
            "chat_template_kwargs",
        ),
        (in_body(chat_template_kwargs="x"), "invalid_request", "body.chat_template_kwargs"),
        (in_body(stream=True), "streaming_unsupported", "body.stream"),
        (CHAT | {"stream": True}, "streaming_unsupported", "stream"),
        (in_body(temperature="hot"), "invalid_request", "body.temperature"),
        (CHAT | {"temperature": "hot"}, "invalid_request", "temperature"),
    ],
)
def test_fault_has_a_code_and_names_its_field(
    columns: dict[str, Any], code: str, param: str
) -> None:
    error = fault_of(columns)
    assert (error.code, error.param, error.status) == (code, param, 400)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suffix", "x"),
        ("audio", {"voice": "a"}),
        ("modalities", ["text", "audio"]),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("min_tokens", 5),
        ("skip_special_tokens", False),
        ("reasoning_effort", "low"),
        ("extra_body", {"top_k": 5}),
    ],
)
def test_field_that_cannot_be_honoured_is_a_fault(name: str, value: Any) -> None:
    for columns, prefix in ((in_body(**{name: value}), "body."), (CHAT | {name: value}, "")):
        error = fault_of(columns)
        assert (error.code, error.param) == ("unsupported_parameter", prefix + name)
        assert "not supported" in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "text"}),
        ("response_format", {"type": "text", "json_schema": None}),
        ("echo", False),
        ("suffix", ""),
        ("modalities", ["text"]),
        ("parallel_tool_calls", True),
        ("stream", False),
        ("stream_options", {"include_usage": True}),
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("store", True),
        ("service_tier", "auto"),
        ("logprobs", False),
        ("tool_choice", "auto"),
        ("skip_special_tokens", True),
        ("include_stop_str_in_output", False),
        ("best_of", 1),
    ],
)
def test_field_that_asks_for_nothing_is_accepted(name: str, value: Any) -> None:
    assert request_of(in_body(**{name: value})) == request_of(in_body())


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("temprature", "temperature"), ("max_token", "max_tokens"), ("stop_tokens", "stop_token_ids")],
)
def test_unknown_field_of_a_body_names_the_nearest_known(name: str, nearest: str) -> None:
    error = fault_of(in_body(**{name: 1}))
    assert (error.code, error.param) == ("unknown_field", f"body.{name}")
    assert f"did you mean {nearest}?" in error.message


@pytest.mark.parametrize("name", ["zzzzqqq", "input"])
def test_unknown_field_like_no_other_is_a_fault(name: str) -> None:
    error = fault_of(in_body(**{name: 1}))
    assert error.code == "unknown_field"
    assert "did you mean" not in error.message


def test_message_of_a_row_without_request_names_its_columns() -> None:
    assert "id, review" in fault_of({"id": 1, "review": "good"}).message
    assert "--prompt" in fault_of({"id": 1, "review": "good"}).message


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", "a"), ("", ""), (7, "7"), (1.5, "1.5"), (10**30, str(10**30)), (None, None)],
)
def test_custom_id_is_text(value: Any, expected: str | None) -> None:
    assert read_custom_id({"custom_id": value}) == expected


def test_custom_id_may_be_missing_and_id_is_not_it() -> None:
    assert read_custom_id({"id": "a"}) is None


@pytest.mark.parametrize("value", [True, ["a"], {"a": 1}])
def test_custom_id_of_another_type_is_a_fault(value: Any) -> None:
    with pytest.raises(RowError) as caught:
        read_custom_id({"custom_id": value})
    assert (caught.value.code, caught.value.param) == ("invalid_request", "custom_id")


def test_fields_of_a_body_are_of_one_kind_each() -> None:
    assert not UNSUPPORTED_FIELDS.keys() & {"messages", "prompt", "tools", "temperature", "user"}


@given(
    st.dictionaries(
        st.sampled_from(["custom_id", "method", "url", "body", "params", *sorted(KNOWN_FIELDS)]),
        VALUES,
        max_size=5,
    )
    | st.fixed_dictionaries(
        {},
        optional={
            "body": st.dictionaries(st.sampled_from(sorted(KNOWN_FIELDS)), VALUES, max_size=4),
            "params": st.dictionaries(
                st.sampled_from(["messages", "system", "tools", "tool_choice", "stop_sequences"]),
                VALUES,
            ),
        },
    )
)
def test_any_row_makes_a_request_or_a_fault(columns: dict[str, Any]) -> None:
    try:
        request = request_of(columns)
    except RowError:
        return
    assert (request.messages is None) != (request.prompt is None)
