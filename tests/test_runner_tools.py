"""Whole runs of a model that reasons and calls tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import batchrun
from batchrun.errors import UsageError
from batchrun.report.summary import Summary
from tests import thinking
from tests.engine.guided import PERSON
from tests.running import read_jsonl, read_parquet, write_jsonl

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
HI = {"messages": [{"role": "user", "content": "Hi"}]}
BEGUN = {"chat_template_kwargs": {"begun": True, "enable_thinking": True}}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking.build(tmp_path_factory.mktemp("thinking"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def run(rows: list[Any], output: Path, model: Path, **flags: Any) -> Summary:
    path = write_jsonl(output.with_name("in.jsonl"), rows)
    options = {"model": str(model), "max_tokens": 60, "quiet": True} | flags
    return batchrun.run(path, output=output, **options)


def test_reasoning_is_closed_in_time_and_the_schema_follows(output: Path, model: Path) -> None:
    rows = [
        {**HI, **BEGUN, "guided_json": PERSON},
        {**HI, **BEGUN, "guided_json": PERSON, "n": 2, "temperature": 1.0},
        {**HI, **OFF, "guided_json": PERSON},
        {**HI, "guided_json": PERSON, "logit_bias": {str(thinking.THINK): -100}},
        {**HI, "guided_json": PERSON, "logit_bias": {str(thinking.THINK): 100}},
    ]
    assert run(rows, output, model, reasoning_budget=7, max_tokens=90).exit_status == 0
    first, *two, off, without, with_ = read_parquet(output)
    for row in (first, *two, off, without, with_):
        assert row["parsed"] == row["text"], row
        assert set(json.loads(row["parsed"])) == set(PERSON["properties"])
    for row in (first, *two):
        assert row["reasoning"] is not None
        assert 0 < row["reasoning_tokens"] <= 8
        assert row["reasoning_tokens"] < row["completion_tokens"]
    assert with_["reasoning_tokens"] <= 9
    assert (off["reasoning"], off["reasoning_tokens"]) == (None, None)
    assert (without["reasoning"], without["reasoning_tokens"]) == (None, 0)


def test_one_row_reasons_and_the_next_does_not(output: Path, model: Path) -> None:
    rows = [{**HI, **BEGUN}, {**HI, **OFF}, {**HI, **BEGUN, "max_tokens": 3}]
    run(rows, output, model, reasoning_budget=5, max_tokens=20)
    begun, off, short = read_parquet(output)
    assert begun["reasoning_tokens"] == 6
    assert off["reasoning"] is None
    assert (short["text"], short["reasoning_tokens"]) == ("", 3)
    assert short["finish_reason"] == "length"


def test_a_budget_is_part_of_what_was_asked(output: Path, model: Path) -> None:
    rows = [{**HI, **BEGUN}, {**HI, **OFF}]
    run(rows, output, model, reasoning_budget=5)
    again = run(rows, output, model, reasoning_budget=6)
    assert again.request_counts.reused == 1


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_demanded_calls_are_valid(choice: Any, output: Path, model: Path) -> None:
    rows = [
        {**HI, **OFF, "tools": [TOOL], "tool_choice": choice, "temperature": 1.0, "seed": seed}
        for seed in range(4)
    ]
    rows.append({**HI, **OFF, "tools": [TOOL], "parallel_tool_calls": False})
    run(rows, output, model, max_tokens=200)
    *called, free = read_parquet(output)
    for row in called:
        assert row["finish_reason"] in ("tool_calls", "length"), row
        for call in json.loads(row["tool_calls"] or "[]"):
            assert call["function"]["name"] == "weather"
            assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    assert any(row["tool_calls"] for row in called)
    assert free["finish_reason"] in ("stop", "length")


def test_jsonl_has_calls_and_reasoning_where_openai_has_them(tmp_path: Path, model: Path) -> None:
    output = tmp_path / "out.jsonl"
    named = {"type": "function", "function": {"name": "weather"}}
    rows = [{**HI, **BEGUN, "tools": [TOOL], "tool_choice": named}]
    for reused in (0, 1):
        summary = run(rows, output, model, reasoning_budget=4, max_tokens=200, seed=1)
        assert summary.request_counts.reused == reused
        (line,) = read_jsonl(output)
        body = line["response"]["body"]
        (choice,) = body["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert choice["message"]["reasoning_content"] is not None
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
        assert 0 < body["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 5


@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', "junk", '["Rome"]', None])
def test_earlier_calls_of_any_kind_go_with_a_shape(
    arguments: Any, output: Path, model: Path
) -> None:
    called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history = [
        HI["messages"][0],
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
    ]
    rows = [{"messages": history, **OFF, "guided_json": PERSON}, {**HI, **OFF, "guided_regex": "a"}]
    assert run(rows, output, model, max_tokens=80).exit_status == 0
    first, second = read_parquet(output)
    assert set(json.loads(first["parsed"])) == set(PERSON["properties"])
    assert second["text"] == "a"


def test_parsers_that_read_nothing_leave_the_text_whole(output: Path, model: Path) -> None:
    rows = [{**HI, **BEGUN, "tools": [TOOL]}]
    run(rows, output, model, tool_parser="none", reasoning_parser="none", max_tokens=20)
    (row,) = read_parquet(output)
    assert (row["reasoning"], row["reasoning_tokens"], row["tool_calls"]) == (None, None, None)


def test_a_tool_that_cannot_be_demanded_is_the_rows_error(output: Path, model: Path) -> None:
    rows = [{**HI, "tools": [TOOL], "tool_choice": "required"}, HI]
    assert run(rows, output, model, tool_parser="pythonic", max_tokens=5).exit_status == 3
    failed, answered = read_parquet(output)
    assert failed["error_code"] == "unsupported_parameter"
    assert answered["text"] is not None


def test_a_budget_below_zero_is_a_usage_error(output: Path, model: Path) -> None:
    with pytest.raises(UsageError, match="--reasoning-budget"):
        run([HI], output, model, reasoning_budget=-1)
