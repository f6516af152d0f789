"""`check`: one verdict for every row, with and without a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from batchrun.check import check
from batchrun.config import SourceConfig
from batchrun.records import Failure, Prompt, Request
from batchrun.source import read_requests
from tests.prepare.conftest import preparer

ROWS = [
    '{"messages": [{"role": "user", "content": "hi"}]}',
    "null",
    '{"prompt": "' + "x" * 100 + '"}',
    json.dumps({"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]}),
    '{"custom_id": "a", "body": "text"}',
    '{"prompt": "x", "stream": true}',
]


def requests(folder: Path) -> Iterator[Request | Failure]:
    path = folder / "in.jsonl"
    path.write_text("\n\n".join(ROWS), encoding="utf-8")
    return read_requests(SourceConfig(inputs=(str(path),)))


def test_every_row_has_a_verdict(tmp_path: Path) -> None:
    verdicts = [isinstance(row, Request) for row in check(requests(tmp_path))]
    assert verdicts == [True, False, True, True, False, False]


def test_a_tokenizer_finds_more_and_names_the_lines(tmp_path: Path) -> None:
    rows = list(check(requests(tmp_path), preparer(context_length=50)))
    lines = {row.row.line: row.error.code for row in rows if isinstance(row, Failure)}
    assert len(rows) == len(ROWS)
    assert sum(isinstance(row, Prompt) for row in rows) == len(ROWS) - len(lines)
    assert lines.keys() == {3, 5, 7, 9, 11}
    assert lines[5] == "context_length_exceeded"
    assert lines[7] == "unsupported_content"
