"""The content of report files, for what reads them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from batchrun.engine.stats import EngineStats
from batchrun.records import Result
from batchrun.report.recorder import Recorder
from batchrun.report.summary import report_text
from tests.report import figures
from tests.report.completions import completion
from tests.sink.builders import make_answer, make_row


def recorder(rows: int = 30, text: str = "an answer", thumbnails: Sequence[bytes] = ()) -> Recorder:
    made, stats = Recorder(), EngineStats()
    made.history.add(1.0, stats)
    for index in range(rows):
        stats.prefill_tokens += 40
        stats.decode_tokens += 20
        stats.decode_steps += 5
        stats.row_steps += 20
        made.history.add(1.5 + index / 2, stats)
        seconds, tokens = index / 7, index + 1
        done = completion(index, text=text, tokens=tokens, seconds=seconds, thumbnails=thumbnails)
        made.finished(done)
    deque(made.wrong_among(wrong_answers(rows, text), "label"), maxlen=0)
    return made


def wrong_answers(rows: int, text: str) -> Iterator[Result]:
    """As many, each of a row with two kept columns."""
    for index in range(rows):
        row = make_row(index, kept={"label": f"not {text}", text: text})
        yield Result(row, make_answer(f"k{index}", text=text), correct=False)


def report(
    *, errors: dict[str, str] | None = None, recorded: Recorder | None = None, **values: Any
) -> dict[str, Any]:
    """As `figures.summary` takes it; with what its page draws."""
    meter = figures.meter(completed=30, truncated=2, reused=4, errors=errors or {}, total=40)
    text = report_text(figures.summary(meter, **values), (recorded or recorder()).to_dict())
    content: dict[str, Any] = json.loads(text)
    return content
