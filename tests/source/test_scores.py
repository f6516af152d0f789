"""What rows ask about tokens that they give themselves."""

from __future__ import annotations

from typing import Any

import pytest

from batchrun.errors import RowError
from batchrun.records import Request, Row, Sampling
from batchrun.source.cells import parse_typed
from batchrun.source.forms import read_request

CHAT = [{"role": "user", "content": "hi"}]


def read(columns: dict[str, Any], defaults: Sampling | None = None) -> Request:
    return read_request(Row(0, "in.jsonl", 1), columns, defaults or Sampling())


def test_prompt_logprobs_are_of_any_row() -> None:
    assert read({"prompt": "a", "prompt_logprobs": 3}).prompt_logprobs == 3
    assert read({"messages": CHAT, "prompt_logprobs": 0}).prompt_logprobs == 0
    assert read({"messages": CHAT}).prompt_logprobs is None


def test_echo_with_logprobs_scores_the_prompt() -> None:
    asked = read({"prompt": "a", "echo": True, "logprobs": 2, "max_tokens": 0})
    assert (asked.echo, asked.prompt_logprobs) == (True, 2)
    alone = read({"prompt": "a", "echo": True})
    assert (alone.echo, alone.prompt_logprobs) == (True, None)
    assert not read({"prompt": "a", "echo": False, "logprobs": 2}).echo


@pytest.mark.parametrize(
    "columns",
    [
        {"context": "A b", "continuation": " c", "other": 1},
        {"body": {"context": "A b", "continuation": " c"}},
        {"body": {"context": "A b", "continuation": " c", "model": "m"}, "url": "/v1/completions"},
        {"context": "A b", "continuation": " c", "temperature": 1.5, "max_tokens": 7},
    ],
)
def test_a_continuation_is_scored_and_nothing_written(columns: dict[str, Any]) -> None:
    asked = read(columns, Sampling(temperature=2, n=3))
    assert (asked.prompt, asked.continuation) == ("A b", " c")
    assert asked.sampling == Sampling(max_tokens=0)
    assert asked.shape is None


def test_an_empty_context_is_one() -> None:
    assert read({"context": "", "continuation": "c"}).prompt == ""


def test_data_beside_a_request_is_no_continuation() -> None:
    columns = {"messages": CHAT, "context": "a", "continuation": "b"}
    assert read(columns).continuation is None


def test_text_cells_stay_text() -> None:
    assert parse_typed({"context": "1", "continuation": "2"}) == {
        "context": "1",
        "continuation": "2",
    }


@pytest.mark.parametrize(
    ("columns", "param"),
    [
        ({"messages": CHAT, "echo": True}, "echo"),
        ({"prompt": "a", "echo": 1}, "echo"),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": 2, "echo": True, "logprobs": 1}, "prompt_logprobs"),
        ({"context": "a", "continuation": ""}, "continuation"),
        ({"context": "a", "continuation": 5}, "continuation"),
        ({"continuation": "a"}, "context"),
        ({"context": "a", "continuation": "b", "echo": True}, "echo"),
        ({"body": {"prompt": "a", "context": "a", "continuation": "b"}}, "body.prompt"),
        ({"body": {"context": "a"}}, "body.context"),
        (
            {"body": {"context": "a", "continuation": "b"}, "url": "/v1/chat/completions"},
            "body.messages",
        ),
    ],
)
def test_what_cannot_be_is_the_rows_error(columns: dict[str, Any], param: str) -> None:
    with pytest.raises(RowError) as caught:
        read(columns)
    assert caught.value.param == param
