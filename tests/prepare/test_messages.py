"""Messages in the shape that text templates read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.errors import RowError
from batchrun.prepare.messages import parted_messages, plain_messages
from tests.prepare.conftest import turn


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def plain_arguments(arguments: Any) -> Any:
    history = [turn("assistant", "", tool_calls=[call(arguments)])]
    return plain_messages(history)[0]["tool_calls"][0]["function"]["arguments"]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "input_text", "text": "two"}]
    assert plain_messages([turn("user", parts)]) == [turn("user", "one two")]


@pytest.mark.parametrize("kind", ["image_url", "image", "video", "input_audio"])
def test_media_parts_are_refused_by_their_place(kind: str) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": "red.png"}}]
    with pytest.raises(RowError) as caught:
        plain_messages([turn("system", "s"), turn("user", parts)])
    assert caught.value.code == "unsupported_content"
    assert caught.value.param == "messages[1].content[1]"


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


@pytest.mark.parametrize("calls", [[{"function": "f"}], [{}]])
def test_tool_calls_of_any_shape_pass(calls: Any) -> None:
    assert plain_messages([turn("assistant", "", tool_calls=calls)])[0]["tool_calls"] == calls


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["function", "arguments", "x"])
    return st.dictionaries(names, values, max_size=4)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just('{"a": 1}'),
    lambda inner: st.lists(inner, max_size=3) | objects(inner),
    max_leaves=10,
)


parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "output_text", "image_url"]), "text": st.text(max_size=5)}
)
any_messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "tool", "developer"]),
            "content": st.text(max_size=5) | st.lists(parts, min_size=1, max_size=3),
        },
        optional={"tool_calls": st.lists(objects(json_values), max_size=3), "name": json_values},
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


def test_text_between_images_is_one_part_and_text_alone_a_string() -> None:
    one, two = {"type": "text", "text": "one "}, {"type": "input_text", "text": "two"}
    image, clip = {"type": "image"}, {"type": "video"}
    together = {"type": "text", "text": "one two"}
    messages = [turn("developer", [one, two]), turn("user", [one, two, image, clip, one])]
    assert parted_messages(messages) == [
        turn("system", "one two"),
        turn("user", [together, image, clip, one]),
    ]


def test_calls_are_parsed_beside_images_too() -> None:
    history = [turn("assistant", "", tool_calls=[call('{"a": 1}')])]
    assert parted_messages(history) == plain_messages(history)
    assert parted_messages(history, parse_arguments=False) == plain_messages(
        history, parse_arguments=False
    )
