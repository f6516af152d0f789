"""When an answer counts as the JSON that its row asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchrun.answers.schema import parsed
from batchrun.records import Completion, Prompt, Request, Row, Sampling, Shape

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}


def answered(text: str, shape: Shape | None = None, **fields: Any) -> Completion:
    shape = shape or Shape("json", json.dumps(SCHEMA))
    request = Request(Row(0, "in.jsonl", 1), Sampling(), prompt="hi", shape=shape)
    values = {"finish_reason": "stop"} | fields
    return Completion(Prompt(request, [1], "key"), 0, [1], text, **values)


def parsed_of(completion: Completion) -> str | None:
    return parsed(completion, completion.text)


def test_whole_and_valid_json_is_kept_as_it_stands() -> None:
    assert parsed_of(answered(' {"a":  1.50}\n')) == '{"a":  1.50}'


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": "x"}', "{}", '{"a": 1} and more', '{"a": 1e999}', "[" * 100_000]
)
def test_anything_else_is_not(text: str) -> None:
    assert parsed_of(answered(text)) is None


def test_what_was_cut_off_is_not_even_where_it_is_valid() -> None:
    number = Shape("json", '{"type": "integer"}')
    assert parsed_of(answered("12", number)) == "12"
    assert parsed_of(answered("12", number, finish_reason="length")) is None


def test_only_rows_with_a_schema_have_it() -> None:
    assert parsed_of(answered("12", Shape("regex", "[0-9]+"))) is None
    completion = answered("12")
    plain = Request(completion.prompt.row, Sampling(), prompt="hi")
    assert parsed_of(Completion(Prompt(plain, [1], "key"), 0, [1], "12", "stop")) is None
