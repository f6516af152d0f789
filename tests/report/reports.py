"""The content of report files, for what reads them."""

from __future__ import annotations

import json
from typing import Any

from batchrun.engine.stats import EngineStats
from batchrun.report.recorder import Recorder
from batchrun.report.summary import report_text
from tests.report import figures
from tests.report.completions import completion


def recorder(rows: int = 30, text: str = "an answer") -> Recorder:
    made, stats = Recorder(), EngineStats()
    made.history.add(1.0, stats)
    for index in range(rows):
        stats.prefill_tokens += 40
        stats.decode_tokens += 20
        stats.decode_steps += 5
        stats.row_steps += 20
        made.history.add(1.5 + index / 2, stats)
        made.finished(completion(index, text=text, tokens=index + 1, seconds=index / 7))
    return made


def report(
    *, errors: dict[str, str] | None = None, recorded: Recorder | None = None, **values: Any
) -> dict[str, Any]:
    """As `figures.summary` takes it; with what its page draws."""
    meter = figures.meter(completed=30, truncated=2, reused=4, errors=errors or {}, total=40)
    text = report_text(figures.summary(meter, **values), (recorded or recorder()).to_dict())
    content: dict[str, Any] = json.loads(text)
    return content
