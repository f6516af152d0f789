"""Reasoning, text and tool calls of finished answers."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Any

import pytest
from mlx_lm import tool_parsers

from batchrun.answers.parts import PartReader, Parts
from batchrun.records import Completion, Dialect, Prompt, Request, Row, Sampling, Thinking
from tests.prepare.conftest import tokenizer

EOS = 257
THINK, END = (60,), (62,)  # "<" and ">" would be markers
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
CALLED = ("weather", {"city": "Paris", "days": 2})


def ids_of(text: str) -> list[int]:
    return list(tokenizer().encode(text))


def marks() -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(ids_of("<t>")), tuple(ids_of("</t>"))


def dialect(parser: str | None = None) -> Dialect:
    start, end = marks()
    if parser is None:
        return Dialect(start, end)
    module = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    return Dialect(
        start, end, module.tool_call_start, module.tool_call_end, module.parse_tool_call, parser
    )


def read(
    text: str,
    *,
    parser: str | None = "json_tools",
    tools: list[dict[str, Any]] | None = None,
    is_open: bool | None = False,
    ended: list[int] | None = None,
    parallel: bool = True,
    stop_reason: str | int | None = None,
    finish_reason: str = "stop",
) -> Parts:
    """The parts of `text`, which was written token by token; `ended` are the last tokens."""
    ids = [*ids_of(text), *([EOS] if ended is None else ended)]
    request = Request(
        Row(0, "in.jsonl", 1), Sampling(), messages=[], tools=tools, parallel_tool_calls=parallel
    )
    thinking = None if is_open is None else Thinking(*marks(), is_open=is_open)
    prompt = Prompt(request, [1], "key", thinking=thinking)
    shown = text if not isinstance(stop_reason, str) else text.partition(stop_reason)[0]
    completion = Completion(prompt, 0, ids, shown, finish_reason, stop_reason)  # type: ignore[arg-type]
    return PartReader(dialect(parser), tokenizer(), frozenset([EOS])).read(completion)


def called(parts: Parts) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in parts.calls]
    return [(each["name"], json.loads(each["arguments"])) for each in functions]


def test_reasoning_is_taken_from_the_text() -> None:
    parts = read("<t>\nhm, é\n</t>\n\nYes.")
    assert (parts.text, parts.reasoning) == ("\n\nYes.", "hm, é")
    assert parts.reasoning_tokens == len(ids_of("<t>\nhm, é\n</t>"))


def test_reasoning_may_be_begun_by_the_prompt() -> None:
    parts = read("hm\n</t>Yes.", is_open=True)
    assert (parts.text, parts.reasoning) == ("Yes.", "hm")


def test_reasoning_that_is_cut_off_leaves_no_text() -> None:
    parts = read("<t>hm and", finish_reason="length", ended=[])
    assert (parts.text, parts.reasoning) == ("", "hm and")
    assert parts.reasoning_tokens == len(ids_of("<t>hm and"))


def test_an_answer_without_reasoning_is_all_text() -> None:
    parts = read("Yes.</t>")
    assert (parts.text, parts.reasoning, parts.reasoning_tokens) == ("Yes.</t>", None, 0)
    assert read("<t>hm</t>Yes.", is_open=None) == Parts("<t>hm</t>Yes.")


def test_the_text_after_reasoning_ends_before_the_stop_string() -> None:
    parts = read("<t>hm</t>Yes.###", stop_reason="###", ended=[])
    assert (parts.text, parts.reasoning) == ("Yes.", "hm")


def test_a_stop_token_is_no_text() -> None:
    assert read("<t>hm</t>Yes", ended=ids_of("!"), stop_reason=ids_of("!")[0]).text == "Yes"


# ---------------------------------------------------------------- tool calls

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'


def test_a_call_is_taken_from_the_text() -> None:
    parts = read(f"<t>hm</t>Let me see.\n{CALL}", tools=TOOLS)
    assert (parts.text, parts.reasoning) == ("Let me see.", "hm")
    assert called(parts) == [CALLED]
    (call,) = parts.calls
    assert call["type"] == "function"
    assert call == read(f"Let me see.\n{CALL}", tools=TOOLS).calls[0]


def test_several_calls_have_ids_of_their_own() -> None:
    parts = read(f"{CALL}\n{CALL}", tools=TOOLS)
    assert called(parts) == [CALLED, CALLED]
    assert len({call["id"] for call in parts.calls}) == 2
    assert called(read(f"{CALL}\n{CALL}", tools=TOOLS, parallel=False)) == [CALLED]


def test_without_tools_a_call_is_text() -> None:
    assert read(CALL) == Parts(CALL, None, 0)
    assert read(CALL, tools=TOOLS, parser=None) == Parts(CALL, None, 0)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "weather", "argum',
        "<tool_call>nonsense</tool_call> and more",
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>[1]</tool_call>",
    ],
)
def test_what_cannot_be_read_stays_as_it_was_written(text: str) -> None:
    assert read(text, tools=TOOLS) == Parts(text, None, 0)


def test_a_call_that_cannot_be_read_stays_beside_one_that_can() -> None:
    parts = read(f"<tool_call>nonsense</tool_call>\n{CALL}", tools=TOOLS)
    assert parts.text == "<tool_call>nonsense</tool_call>"
    assert called(parts) == [CALLED]


WRITTEN = {
    "function_gemma": "<start_function_call>call:weather{city:<escape>Paris<escape>,days:2}"
    "<end_function_call>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>',
    "glm47": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "json_tools": CALL,
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    '<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="integer"<|sep|>2<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>",
    "laguna": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "longcat": "<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n"
    "<longcat_arg_value>Paris</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
    "<longcat_arg_value>2</longcat_arg_value>\n</longcat_tool_call>",
    "minicpm5": '<function name="weather"><param name="city">Paris</param>'
    '<param name="days">2</param></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="weather">\n'
    '<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris", "days": 2}}]',
    "muse_spark": '<atem:function_calls>\n<atem:invoke name="weather">\n'
    '<atem:parameter name="city">Paris</atem:parameter>\n'
    '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
    "pythonic": "<|tool_call_start|>[weather(city='Paris', days=2)]<|tool_call_end|>",
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize(
    "parser", sorted(module.name for module in pkgutil.iter_modules(tool_parsers.__path__))
)
def test_every_parser_of_mlx_lm_reads_a_call_in_its_form(parser: str) -> None:
    parts = read(f"Well. {WRITTEN[parser]}", parser=parser, tools=TOOLS)
    assert called(parts) == [CALLED]
    assert parts.text == "Well."
