from __future__ import annotations

from typing import Any

import pytest

from batchrun.errors import RowError
from batchrun.source.fields import Body, without_nulls
from batchrun.source.messages import read_messages, read_tool_choice, read_tools

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def messages_of(*messages: Any) -> list[dict[str, Any]]:
    return read_messages(Body({"messages": list(messages)}, "body."))


def fault_of(*messages: Any) -> RowError:
    with pytest.raises(RowError) as caught:
        messages_of(*messages)
    return caught.value


def test_messages_are_kept_as_they_are() -> None:
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"},
        {"role": "assistant", "content": "b", "reasoning_content": "r", "tool_calls": [CALL]},
        {"role": "tool", "content": "c", "tool_call_id": "c1"},
    ]
    assert messages_of(*messages) == messages


@pytest.mark.parametrize("content", [{}, {"content": []}])
def test_missing_content_beside_tool_calls_is_empty_text(content: dict[str, Any]) -> None:
    message = {"role": "assistant", "tool_calls": [CALL], **content}
    assert messages_of(message) == [{"role": "assistant", "tool_calls": [CALL], "content": ""}]


@pytest.mark.parametrize("arguments", ['{"a": 1}', "junk", [1], {"a": 1}])
def test_arguments_of_tool_calls_pass_unchanged(arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert messages_of(message) == [message]


def test_media_parts_pass_unseen() -> None:
    part = {"type": "image_url", "image_url": {"url": "nowhere"}}
    message = {"role": "user", "content": [part, {"type": "text", "text": "what?"}]}
    assert messages_of(message) == [message]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hello", "messages[0]"),
        (None, "messages[0]"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "robot", "content": "a"}, "messages[0].role"),
        ({"role": ["user"], "content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": []}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": "f()"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["f()"]}, "messages[0].tool_calls"),
    ],
)
def test_bad_message_is_named(message: Any, param: str) -> None:
    error = fault_of(message)
    assert (error.code, error.param) == ("invalid_request", f"body.{param}")


def test_fault_names_the_number_of_its_message() -> None:
    good = {"role": "user", "content": "a"}
    assert fault_of(good, good, {"role": "x"}).param == "body.messages[2].role"


@pytest.mark.parametrize("messages", [[], "hi", {"role": "user"}])
def test_messages_that_are_no_list_of_some_are_a_fault(messages: Any) -> None:
    with pytest.raises(RowError) as caught:
        read_messages(Body({"messages": messages}, "body."))
    assert caught.value.param == "body.messages"


def test_system_given_apart_comes_first() -> None:
    user = {"role": "user", "content": "a"}
    body = Body({"messages": [user]}, system=[{"type": "text", "text": "s"}])
    assert read_messages(body) == [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        user,
    ]


def test_nulls_are_dropped_at_every_depth_of_objects_and_kept_in_lists() -> None:
    value = {"a": None, "b": [{"c": None, "d": [None, 1]}], "e": {"f": {"g": None}}}
    assert without_nulls(value) == {"b": [{"d": [None, 1]}], "e": {"f": {}}}


def test_arrow_maps_become_objects() -> None:
    assert without_nulls({"a": [("x", 1), ("y", None)]}) == {"a": {"x": 1}}


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
def test_tools_pass_through(choice: dict[str, Any]) -> None:
    assert read_tools(Body({"tools": [TOOL]} | choice)) == [TOOL]


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}])
def test_no_tools_are_none(fields: dict[str, Any]) -> None:
    assert read_tools(Body(fields)) is None


@pytest.mark.parametrize("tools", ["f", [1], {"f": 1}])
def test_tools_that_are_no_objects_are_a_fault(tools: Any) -> None:
    with pytest.raises(RowError, match=r"body\.tools must be a list of objects"):
        read_tools(Body({"tools": tools}, "body."))


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("auto", "auto"), ("none", "auto"), ("required", "required"), (NAMED, "f")],
)
def test_tool_choice_is_auto_required_or_a_name(choice: Any, expected: str) -> None:
    body = Body({"tools": [TOOL], "tool_choice": choice}, "body.")
    assert read_tool_choice(body, [TOOL]) == expected
    assert read_tool_choice(Body({}, "body."), None) == "auto"


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([TOOL], "always", "tool_choice"),
        ([TOOL], {"type": "function", "function": {"name": "g"}}, "tool_choice"),
        ([TOOL], {"type": "function"}, "tool_choice"),
        ([], "required", "tool_choice"),
        (None, NAMED, "tool_choice"),
        ([{"type": "function"}], "required", "tools[0].function.name"),
    ],
)
def test_a_tool_that_cannot_be_called_is_a_fault(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(RowError) as caught:
        read_tool_choice(Body({"tool_choice": choice}, "body."), tools)
    assert caught.value.param == f"body.{param}"


def test_tool_of_another_type_is_not_supported() -> None:
    with pytest.raises(RowError) as caught:
        read_tools(Body({"tools": [TOOL, {"type": "web_search"}]}, "body."))
    assert caught.value.param == "body.tools[1].type"
