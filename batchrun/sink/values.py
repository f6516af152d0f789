"""Records as the values of the journal's columns (see `statements`), and back.

What UTF-8 or JSON cannot hold is replaced on the way in; see `encode`.
"""

from __future__ import annotations

import json
import time
from typing import Any

from batchrun.errors import RowError
from batchrun.records import Answer, Result, Row
from batchrun.sink.encode import clean, dumps, dumps_kept, microseconds


def row_values(row: Row) -> tuple[Any, ...]:
    custom_id = None if row.custom_id is None else clean(row.custom_id)
    kept = dumps_kept(row.kept) if row.kept else None
    return row.index, clean(row.file), row.line, custom_id, kept


def error_values(error: RowError) -> tuple[Any, ...]:
    param = None if error.param is None else clean(error.param)
    return error.code, clean(error.message), error.status, param, microseconds(time.time())


def answer_values(answer: Answer) -> tuple[Any, ...]:
    stop = answer.stop_reason
    return (
        answer.key,
        answer.choice,
        clean(answer.text),
        answer.finish_reason,
        clean(stop) if isinstance(stop, str) else stop,
        answer.prompt_tokens,
        answer.cached_tokens,
        answer.disk_tokens,
        answer.completion_tokens,
        answer.seconds,
        clean(answer.model),
        microseconds(answer.finished_at),
        None if answer.reasoning is None else clean(answer.reasoning),
        None if answer.tool_calls is None else dumps(answer.tool_calls),
        None if answer.logprobs is None else dumps(answer.logprobs),
        None if answer.parsed is None else clean(answer.parsed),
        None if answer.choice_probs is None else dumps(answer.choice_probs),
        None if answer.prompt_logprobs is None else dumps(answer.prompt_logprobs),
        answer.logprob,
        answer.is_greedy,
        answer.reasoning_tokens,
    )


def make_row(values: tuple[Any, ...]) -> Row:
    index, file, line, custom_id, kept = values
    return Row(index, file, line, custom_id, {} if kept is None else json.loads(kept))


def make_result(row: Row, values: tuple[Any, ...]) -> Result:
    is_chat, key, code, message, status, param, failed_at, *answer_values = values
    if code is not None:
        error = RowError(code, message, status=status, param=param)
        return Result(row, None, error, failed_at / 1e6, bool(is_chat), key)
    answer = make_answer(key, answer_values)
    return Result(row, answer, None, answer.finished_at, bool(is_chat), key)


def make_answer(key: str, values: list[Any]) -> Answer:
    *values, parsed, probs, prompt, logprob, greedy, reasoning_tokens = values
    *plain, finished_at, reasoning, tools, logprobs = values
    fields = (
        *plain,
        finished_at / 1e6,
        reasoning,
        _loaded(tools),
        _loaded(logprobs),
        parsed,
        _loaded(probs),
        _loaded(prompt),
        logprob,
        None if greedy is None else bool(greedy),
        reasoning_tokens,
    )
    return Answer(key, *fields)


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)
