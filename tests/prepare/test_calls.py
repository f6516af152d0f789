"""Tools that must be called, and reasoning that prompts leave open."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchrun.errors import RowError
from batchrun.prepare.calls import call_shape
from batchrun.prepare.grammars import Grammars
from batchrun.prepare.thinking import thinking_after
from batchrun.records import Dialect, Request, Row, Sampling, Thinking
from tests.prepare.conftest import tokenizer

JSON_TOOLS = Dialect(
    (1,), (2, 3), "<tool_call>", "</tool_call>", lambda text, tools: {}, "json_tools"
)


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


PLACE = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = [tool("weather", **PLACE, additionalProperties=False), {"function": {"name": "stop"}}]


def asked(choice: str, *, parallel: bool = True, tools: Any = TOOLS) -> Request:
    return Request(
        Row(0, "in.jsonl", 1),
        Sampling(),
        messages=[],
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
    )


def call(name: str, **arguments: Any) -> str:
    value = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{value}\n</tool_call>"


def accepts(request: Request, text: str) -> bool:
    shape = call_shape(request, JSON_TOOLS)
    assert shape is not None
    matcher = Grammars(tokenizer(), [257], None).compile(shape).begin()
    return matcher.consume_tokens(tokenizer().encode(text)) and matcher.is_accepting()


def test_calls_are_left_to_the_model_unless_demanded() -> None:
    assert call_shape(asked("auto"), JSON_TOOLS) is None
    assert call_shape(asked("required", tools=None), JSON_TOOLS) is None


@pytest.mark.parametrize("text", [call("weather", city="Rome"), call("stop")])
def test_required_is_a_valid_call_of_any_tool(text: str) -> None:
    assert accepts(asked("required"), text)
    assert accepts(asked("required"), f"{text}\n{text}")
    assert not accepts(asked("required", parallel=False), f"{text}\n{text}")


@pytest.mark.parametrize("text", ["", "Hello", call("weather"), call("weather", city="Bonn"), "{}"])
def test_required_is_nothing_else(text: str) -> None:
    assert not accepts(asked("required"), text)


def test_a_named_tool_is_called_once_and_no_other() -> None:
    text = call("weather", city="Oslo")
    assert accepts(asked("weather"), text)
    assert not accepts(asked("weather"), f"{text}\n{text}")
    assert not accepts(asked("weather"), call("stop"))


def test_other_forms_of_calls_cannot_be_demanded() -> None:
    for dialect in (Dialect(), Dialect(parser="pythonic", call_start="<")):
        with pytest.raises(RowError) as caught:
            call_shape(asked("required"), dialect)
        assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([5, 6], Thinking((1,), (2, 3))),
        ([5, 1, 6], Thinking((1,), (2, 3), is_open=True)),
        ([1, 9, 2, 3, 8, 1], Thinking((1,), (2, 3), is_open=True)),
        ([1, 9, 2, 3, 8, 5], Thinking((1,), (2, 3))),
        ([5, 1, 2, 3], None),
        ([5, 1, 2, 3, 32, 32], None),
        ([], Thinking((1,), (2, 3))),
    ],
)
def test_the_end_of_the_prompt_tells_of_reasoning(
    token_ids: list[int], expected: Thinking | None
) -> None:
    def decode(ids: list[int]) -> str:
        return "".join(map(chr, ids))

    assert thinking_after(token_ids, JSON_TOOLS, decode, None) == expected
    assert thinking_after(token_ids, Dialect(), decode, None) is None
