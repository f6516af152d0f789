"""The JSONL output: one OpenAI batch output line per row, all choices in its body.

Beyond OpenAI's fields a line has "row" and, where columns are kept, "input"; a choice has
"stop_reason", "correct" where it was judged, and its own "usage", which holds what the shared one
cannot tell apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from batchrun.errors import RowError
from batchrun.records import Answer, Result, Row
from batchrun.sink.encode import dumps

_OURS = {"id", "custom_id", "row", "response", "error"}


def write(results: Iterable[Result], file: IO[bytes]) -> None:
    """Writes one line per row."""
    for _, group in groupby(results, key=lambda result: result.row.index):
        choices = list(group)
        line = _failure(choices[0]) if choices[0].answer is None else _success(choices)
        _put(file, line)


def write_failures(failures: Iterator[Result], file: IO[bytes]) -> None:
    """Writes the lines of failed rows, each with the file and line it came from."""
    for result in failures:
        place = {"file": result.row.file, "line": result.row.line}
        _put(file, _failure(result) | place)


def read(path: Path) -> Iterator[Answer]:
    """The answers of an earlier output; raises ValueError or OSError if it is none."""
    with open(path, "rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                yield from line_answers(json.loads(text))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"line {number} is not an output line of batchrun") from error


def _put(file: IO[bytes], line: dict[str, Any]) -> None:
    file.write(dumps(line).encode() + b"\n")


def _line(result: Result, response: Any, error: Any) -> dict[str, Any]:
    line = {
        "id": f"batch_req_{_request_id(result)}",
        "custom_id": result.row.custom_id,
        "row": result.row.index,
        "response": response,
        "error": error,
    }
    return line | {"input": result.row.kept} if result.row.kept else line


def _request_id(result: Result) -> str:
    return result.key or f"row_{result.row.index}"


def _response(result: Result, status: int, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": _request_id(result), "body": body}


def _failure(result: Result) -> dict[str, Any]:
    error = result.error
    assert error is not None
    if not 400 <= error.status < 500:
        return _line(result, None, {"code": error.code, "message": error.message})
    detail = {
        "message": error.message,
        "type": "invalid_request_error",
        "param": error.param,
        "code": error.code,
    }
    return _line(result, _response(result, error.status, {"error": detail}), None)


def _success(results: list[Result]) -> dict[str, Any]:
    first = results[0]
    answers = [result.answer for result in results if result.answer is not None]
    body = {
        "id": f"{'chatcmpl' if first.is_chat else 'cmpl'}-{first.key}",
        "object": "chat.completion" if first.is_chat else "text_completion",
        "created": int(max(answer.finished_at for answer in answers)),
        "model": answers[0].model,
        "choices": [
            _choice(answer, result) for answer, result in zip(answers, results, strict=True)
        ],
        "usage": _usage(answers),
    }
    return _line(first, _response(first, 200, body), None)


def _usage(answers: list[Answer]) -> dict[str, Any]:
    """The prompt counts once, as it was read once for all choices."""
    prompt = answers[0].prompt_tokens
    completion = sum(answer.completion_tokens for answer in answers)
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": answers[0].cached_tokens,
            "disk_tokens": answers[0].disk_tokens,
        },
    }
    if answers[0].reasoning_tokens is not None:
        reasoning = sum(answer.reasoning_tokens or 0 for answer in answers)
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


def _choice(answer: Answer, result: Result) -> dict[str, Any]:
    logprobs = None if answer.logprobs is None else {"content": answer.logprobs}
    if logprobs is not None and not result.is_chat:
        logprobs |= _legacy_logprobs(answer.logprobs or [])
    return {
        "index": answer.choice,
        **_content(answer, result.is_chat),
        "logprobs": logprobs,
        **_scores(answer),
        **_named("correct", result.correct),
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "usage": {
            "cached_tokens": answer.cached_tokens,
            "disk_tokens": answer.disk_tokens,
            "completion_tokens": answer.completion_tokens,
            **_named("reasoning_tokens", answer.reasoning_tokens),
            "seconds": answer.seconds,
            "finished_at": answer.finished_at,
        },
    }


def _content(answer: Answer, is_chat: bool) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if answer.reasoning is not None:
        extra["reasoning_content"] = answer.reasoning
    if answer.tool_calls is not None:
        extra["tool_calls"] = answer.tool_calls
    if answer.parsed is not None:
        extra["parsed"] = json.loads(answer.parsed)
    if not is_chat:
        return {"text": answer.text, **extra}
    text = None if answer.tool_calls and not answer.text else answer.text
    return {"message": {"role": "assistant", "content": text, **extra}}


def _named(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {name: value}


def _scores(answer: Answer) -> dict[str, Any]:
    """What was asked for about given tokens and choices; nothing where nothing was."""
    scores = {
        "choice_probs": answer.choice_probs,
        "prompt_logprobs": answer.prompt_logprobs,
        "logprob": answer.logprob,
        "is_greedy": answer.is_greedy,
    }
    return {name: value for name, value in scores.items() if value is not None}


def _legacy_logprobs(content: list[dict[str, Any]]) -> dict[str, Any]:
    """The completion endpoint's form of the same numbers."""
    tokens = [entry["token"] for entry in content]
    starts = [0]
    for token in tokens:
        starts.append(starts[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in content],
        "top_logprobs": [
            # The first token of an echoed prompt follows nothing.
            None
            if entry["logprob"] is None
            else {top["token"]: top["logprob"] for top in entry["top_logprobs"]}
            for entry in content
        ],
        "text_offset": starts[:-1],
    }


def line_results(line: dict[str, Any]) -> Iterator[Result]:
    """The results in an output line; raises as `line_answers`."""
    row = Row(line["row"], "", 0, line["custom_id"], line.get("input", {}))
    answers = list(line_answers(line))
    if not answers:
        key = line["id"].removeprefix("batch_req_")
        yield Result(row, None, _line_error(line), key=None if key.startswith("row_") else key)
        return
    is_chat = line["response"]["body"]["object"] == "chat.completion"
    for answer, choice in zip(answers, line["response"]["body"]["choices"], strict=True):
        correct = choice.get("correct")
        yield Result(row, answer, None, answer.finished_at, is_chat, answer.key, correct)


def _line_error(line: dict[str, Any]) -> RowError:
    response = line["response"]
    if response is None:
        error = line["error"]
        return RowError(error["code"], error["message"], status=500)
    detail = response["body"]["error"]
    status = response["status_code"]
    return RowError(detail["code"], detail["message"], status=status, param=detail["param"])


def line_answers(line: dict[str, Any]) -> Iterator[Answer]:
    """The answers in an output line, none where its row failed; raises ValueError, TypeError,
    KeyError or AttributeError where it is no line of ours."""
    if _OURS - line.keys():
        raise ValueError("fields are missing")
    response = line["response"]
    if response is None or response["status_code"] != 200:
        return
    body = response["body"]
    for choice in body["choices"]:
        yield _answer(response["request_id"], body, choice)


def _answer(key: str, body: dict[str, Any], choice: dict[str, Any]) -> Answer:
    content = choice.get("message", choice)
    text = choice["text"] if "text" in choice else content["content"]
    logprobs = choice["logprobs"]
    has_parsed = "parsed" in content
    usage = choice["usage"]
    return Answer(
        key=key,
        choice=choice["index"],
        text=text or "",
        finish_reason=choice["finish_reason"],
        stop_reason=choice["stop_reason"],
        prompt_tokens=body["usage"]["prompt_tokens"],
        cached_tokens=usage["cached_tokens"],
        disk_tokens=usage["disk_tokens"],
        completion_tokens=usage["completion_tokens"],
        seconds=usage["seconds"],
        model=body["model"],
        finished_at=usage["finished_at"],
        reasoning=content.get("reasoning_content"),
        tool_calls=content.get("tool_calls"),
        logprobs=None if logprobs is None else logprobs["content"],
        parsed=dumps(content["parsed"]) if has_parsed else None,
        choice_probs=choice.get("choice_probs"),
        prompt_logprobs=choice.get("prompt_logprobs"),
        logprob=choice.get("logprob"),
        is_greedy=choice.get("is_greedy"),
        reasoning_tokens=usage.get("reasoning_tokens"),
    )
