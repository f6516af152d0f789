"""Messages in the shape that text templates read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.errors import RowError
from batchrun.prepare.messages import plain_messages
from tests.prepare.conftest import turn


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def plain_arguments(arguments: Any) -> Any:
    history = [turn("assistant", None, tool_calls=[call(arguments)])]
    return plain_messages(history)[0]["tool_calls"][0]["function"]["arguments"]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two", "image_url": None}]
    assert plain_messages([turn("user", parts)]) == [turn("user", "one two")]


@pytest.mark.parametrize("kind", ["image_url", "image", "video", "input_audio", None])
def test_media_parts_are_refused_by_their_place(kind: str | None) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind or "x": {"url": "red.png"}}]
    with pytest.raises(RowError) as caught:
        plain_messages([turn("system", "s"), turn("user", parts)])
    assert caught.value.code == "unsupported_content"
    assert caught.value.param == "messages[1].content[1]"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([turn("user", {"a": 1})], "messages[0].content"),
        ([turn("user", 3)], "messages[0].content"),
        ([turn("user", [{"type": "text"}])], "messages[0].content[0].text"),
        ([{"content": "x"}], "messages[0].role"),
        ([], "messages"),
    ],
)
def test_what_is_no_message_is_refused_by_its_place(messages: list[Any], param: str) -> None:
    with pytest.raises(RowError) as caught:
        plain_messages(messages)
    assert caught.value.param == param


def test_null_content_becomes_empty_and_null_keys_go() -> None:
    messages = [{"role": "assistant", "content": None, "name": None, "tool_calls": None}]
    assert plain_messages(messages) == [turn("assistant", "")]


def test_no_calls_is_no_tool_calls_key() -> None:
    assert plain_messages([turn("assistant", "x", tool_calls=[])]) == [turn("assistant", "x")]


def test_developer_is_called_system() -> None:
    assert plain_messages([turn("developer", "x")]) == [turn("system", "x")]


def test_an_object_in_a_string_is_parsed_with_its_nulls() -> None:
    assert plain_arguments('{"city": "Oslo", "unit": null}') == {"city": "Oslo", "unit": None}


@pytest.mark.parametrize(
    "arguments", ["junk", "[1]", "", "3", "[" * 100_000, [1], {"a": 1}, 3, None]
)
def test_arguments_that_are_no_object_in_a_string_stay(arguments: Any) -> None:
    assert plain_arguments(arguments) == arguments


@pytest.mark.parametrize("calls", ["junk", {"a": 1}, ["junk"], [{"function": "f"}], [{}]])
def test_tool_calls_of_any_shape_pass(calls: Any) -> None:
    assert plain_messages([turn("assistant", "", tool_calls=calls)])[0]["tool_calls"] == calls


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just('{"a": 1}'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "function", "arguments", "x"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)
any_messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "developer"])},
        optional={"content": json_values, "tool_calls": json_values, "name": json_values},
    ),
    max_size=4,
)


@given(any_messages)
def test_any_messages_pass_or_are_refused_and_stay_as_they_are(
    messages: list[dict[str, Any]],
) -> None:
    before = copy.deepcopy(messages)
    try:
        plain = plain_messages(messages)
    except RowError:
        plain = []
    assert all(isinstance(message["content"], str) for message in plain)
    assert messages == before
