from __future__ import annotations

from typing import Any

import pytest

from batchrun.errors import RowError
from batchrun.records import Request, Row, Sampling
from batchrun.source.forms import read_request

USER = {"role": "user", "content": "hi"}


def request_of(**params: Any) -> Request:
    row = Row(index=0, file="a.jsonl", line=1)
    columns = {"custom_id": "a", "params": {"messages": [USER]} | params}
    return read_request(row, columns, Sampling())


def fault_of(**params: Any) -> RowError:
    with pytest.raises(RowError) as caught:
        request_of(**params)
    return caught.value


def test_params_are_a_chat_request() -> None:
    request = request_of(
        model="m",
        max_tokens=9,
        temperature=0.5,
        top_k=3,
        stop_sequences=["###"],
        metadata={"user_id": "u"},
        thinking={"type": "disabled"},
        stream=False,
    )
    assert request.messages == [USER]
    assert request.sampling == Sampling(max_tokens=9, temperature=0.5, top_k=3, stop=("###",))


def test_text_blocks_are_text_parts() -> None:
    block = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    request = request_of(messages=[{"role": "user", "content": [block]}])
    assert request.messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


@pytest.mark.parametrize(
    ("system", "content"),
    [
        ("be kind", "be kind"),
        (
            [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}],
            [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}],
        ),
    ],
)
def test_system_comes_first(system: Any, content: Any) -> None:
    assert request_of(system=system).messages == [{"role": "system", "content": content}, USER]


@pytest.mark.parametrize("system", ["", [], None])
def test_empty_system_is_none(system: Any) -> None:
    assert request_of(system=system).messages == [USER]


def test_tools_become_functions() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "weather", "description": "d", "input_schema": schema, "type": "custom"}
    assert request_of(tools=[tool], tool_choice={"type": "auto"}).tools == [
        {
            "type": "function",
            "function": {"name": "weather", "description": "d", "parameters": schema},
        }
    ]
    assert request_of(tools=[tool], tool_choice={"type": "none"}).tools is None
    assert request_of(tools=[tool], tool_choice={"type": "any"}).tool_choice == "required"
    one = {"type": "tool", "name": tool["name"], "disable_parallel_tool_use": True}
    asked = request_of(tools=[tool], tool_choice=one)
    assert (asked.tool_choice, asked.parallel_tool_calls) == (tool["name"], False)


@pytest.mark.parametrize(
    ("params", "code", "param"),
    [
        ({"messages": None}, "missing_required_parameter", "params.messages"),
        ({"messages": []}, "invalid_request", "params.messages"),
        ({"messages": "hi"}, "invalid_request", "params.messages"),
        ({"messages": ["hi"]}, "invalid_request", "params.messages[0]"),
        ({"messages": [{"role": "user"}]}, "invalid_request", "params.messages[0].content"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "unsupported_parameter",
            "params.messages[1].content[0].source.type",
        ),
        (
            {"messages": [{"role": "user", "content": ["a"]}]},
            "invalid_request",
            "params.messages[0].content[0]",
        ),
        ({"system": 5}, "invalid_request", "params.system"),
        ({"system": [{"type": "text"}]}, "invalid_request", "params.system[0].text"),
        ({"stop_sequences": [""]}, "invalid_request", "params.stop_sequences"),
        ({"max_tokens": "9"}, "invalid_request", "params.max_tokens"),
        ({"stream": True}, "streaming_unsupported", "params.stream"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}},
            "unsupported_parameter",
            "params.thinking",
        ),
        ({"tools": "f"}, "invalid_request", "params.tools"),
        ({"tools": [{"description": "d"}]}, "invalid_request", "params.tools[0]"),
        (
            {"tools": [{"type": "bash_1", "name": "bash"}]},
            "unsupported_parameter",
            "params.tools[0]",
        ),
        (
            {"tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "g"}},
            "invalid_request",
            "params.tool_choice",
        ),
        (
            {"tools": [{"name": "f"}], "tool_choice": "auto"},
            "invalid_request",
            "params.tool_choice",
        ),
        ({"stop_sequence": ["a"]}, "unknown_field", "params.stop_sequence"),
    ],
)
def test_fault_names_the_field_as_the_row_has_it(
    params: dict[str, Any], code: str, param: str
) -> None:
    error = fault_of(**params)
    assert (error.code, error.param) == (code, param)
