from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from batchrun.errors import RowError
from batchrun.sink import Journal, read_answers, write_output
from tests.sink.builders import MOMENT, chat, completion, failure, make_answer, make_row

LOGPROBS = [
    {
        "token": "ab",
        "logprob": -0.5,
        "bytes": [97, 98],
        "top_logprobs": [{"token": "ab", "logprob": -0.5}, {"token": "x", "logprob": -2.0}],
    },
    {"token": "c", "logprob": -1.0, "bytes": [99], "top_logprobs": []},
]


def lines(journal: Journal, folder: Path) -> list[dict[str, Any]]:
    write_output(journal, folder / "out.jsonl", "jsonl")
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_a_chat_row_is_one_openai_line_with_all_choices(journal: Journal, tmp_path: Path) -> None:
    journal.add_row(chat(make_row(0, custom_id="a", kept={"label": "x"}), n=2), "k")
    journal.add_answer(
        make_answer("k", 0, logprobs=LOGPROBS, reasoning="hm", cached_tokens=4, disk_tokens=3)
    )
    calls = [{"id": "1", "type": "function"}]
    journal.add_answer(make_answer("k", 1, text="", tool_calls=calls, stop_reason=13))
    own_usage = {"completion_tokens": 3, "seconds": 0.25, "finished_at": MOMENT}
    assert lines(journal, tmp_path) == [
        {
            "id": "batch_req_k",
            "custom_id": "a",
            "row": 0,
            "response": {
                "status_code": 200,
                "request_id": "k",
                "body": {
                    "id": "chatcmpl-k",
                    "object": "chat.completion",
                    "created": int(MOMENT),
                    "model": "tiny",
                    "choices": [
                        {
                            "index": 0,
                            "message": {
                                "role": "assistant",
                                "content": "answer k 0",
                                "reasoning_content": "hm",
                            },
                            "logprobs": {"content": LOGPROBS},
                            "finish_reason": "stop",
                            "stop_reason": None,
                            "usage": {"cached_tokens": 4, "disk_tokens": 3, **own_usage},
                        },
                        {
                            "index": 1,
                            "message": {"role": "assistant", "content": None, "tool_calls": calls},
                            "logprobs": None,
                            "finish_reason": "stop",
                            "stop_reason": 13,
                            "usage": {"cached_tokens": 0, "disk_tokens": 0, **own_usage},
                        },
                    ],
                    "usage": {
                        "prompt_tokens": 7,
                        "completion_tokens": 6,
                        "total_tokens": 13,
                        "prompt_tokens_details": {"cached_tokens": 4, "disk_tokens": 3},
                    },
                },
            },
            "error": None,
            "input": {"label": "x"},
        }
    ]


def test_a_completion_row_has_the_completion_endpoints_form(
    journal: Journal, tmp_path: Path
) -> None:
    journal.add_row(completion(make_row()), "k")
    journal.add_answer(make_answer("k", text="abc", logprobs=LOGPROBS))
    (line,) = lines(journal, tmp_path)
    assert line["custom_id"] is None
    assert "input" not in line
    body = line["response"]["body"]
    assert (body["id"], body["object"]) == ("cmpl-k", "text_completion")
    (choice,) = body["choices"]
    assert choice["text"] == "abc"
    assert "message" not in choice
    assert choice["logprobs"] == {
        "content": LOGPROBS,
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{"ab": -0.5, "x": -2.0}, {}],
        "text_offset": [0, 2],
    }


def test_rejected_and_broken_rows_fail_in_openais_two_ways(
    journal: Journal, tmp_path: Path
) -> None:
    journal.add_failure(failure(make_row(0, custom_id="a"), 404, param="body.model"))
    journal.add_row(chat(make_row(1)), "k")
    journal.fail_key("k", RowError("engine_failed", "it failed", status=500))
    rejected, broken = lines(journal, tmp_path)
    assert rejected == {
        "id": "batch_req_row_0",
        "custom_id": "a",
        "row": 0,
        "response": {
            "status_code": 404,
            "request_id": "row_0",
            "body": {
                "error": {
                    "message": "no messages",
                    "type": "invalid_request_error",
                    "param": "body.model",
                    "code": "invalid_request",
                }
            },
        },
        "error": None,
    }
    assert broken == {
        "id": "batch_req_k",
        "custom_id": None,
        "row": 1,
        "response": None,
        "error": {"code": "engine_failed", "message": "it failed"},
    }
    listed = (tmp_path / "out.errors.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in listed] == [
        rejected | {"file": "in.jsonl", "line": 1},
        broken | {"file": "in.jsonl", "line": 2},
    ]
    assert list(read_answers(tmp_path / "out.jsonl", "jsonl")) == []


def test_lines_are_strict_json_in_utf8_whatever_was_kept(journal: Journal, tmp_path: Path) -> None:
    kept = {"nan": float("nan"), "lone": "\ud800", "line\u2028end": b"\x00"}
    journal.add_row(chat(make_row(kept=kept)), "k")
    journal.add_answer(make_answer("k", text="\u2028\u0085 שלום"))
    write_output(journal, tmp_path / "out.jsonl", "jsonl")
    (text,) = (tmp_path / "out.jsonl").read_bytes().decode("utf-8").split("\n")[:-1]

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = json.loads(text, parse_constant=refuse)
    assert line["input"] == {"nan": None, "lone": "\ud800", "line\u2028end": "AA=="}
    assert line["response"]["body"]["choices"][0]["message"]["content"] == "\u2028\u0085 שלום"
