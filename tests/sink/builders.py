"""Small records for the sink's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batchrun.errors import RowError
from batchrun.records import Answer, Failure, Request, Row, Sampling
from batchrun.sink import Journal

MOMENT = 1_753_000_000.123456


def make_row(index: int = 0, **fields: Any) -> Row:
    return Row(index, "in.jsonl", index + 1, **fields)


def chat(row: Row, n: int = 1) -> Request:
    return Request(row, Sampling(n=n), messages=[{"role": "user", "content": "hi"}])


def completion(row: Row, n: int = 1) -> Request:
    return Request(row, Sampling(n=n), prompt="hi")


def has_answers(journal: Journal, key: str, n: int) -> bool:
    return set(range(n)) <= journal.finish_reasons([key]).get(key, {}).keys()


def make_answer(key: str, choice: int = 0, **fields: Any) -> Answer:
    values: dict[str, Any] = {
        "text": f"answer {key} {choice}",
        "finish_reason": "stop",
        "stop_reason": None,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "disk_tokens": 0,
        "completion_tokens": 3,
        "seconds": 0.25,
        "model": "tiny",
        "finished_at": MOMENT,
    }
    return Answer(key, choice, **(values | fields))


def failure(row: Row, status: int = 400, **fields: Any) -> Failure:
    return Failure(row, RowError("invalid_request", "no messages", status=status, **fields))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
