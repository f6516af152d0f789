"""Finished meters and summaries for the tests of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batchrun.config import RunConfig, SourceConfig
from batchrun.engine.stats import EngineStats
from batchrun.errors import RowError
from batchrun.records import Row
from batchrun.report.meter import Meter
from batchrun.report.summarize import summarize
from batchrun.report.summary import Summary

GB = 10**9
CPU = {"kind": "cpu", "name": "Some CPU", "blas": "openblas"}


class Clock:
    """Seconds that pass only when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def config(output: str = "out.parquet", **values: Any) -> RunConfig:
    return RunConfig(source=SourceConfig(inputs=("in.jsonl",)), output=Path(output), **values)


def meter(
    *,
    completed: int = 0,
    reused: int = 0,
    truncated: int = 0,
    errors: dict[str, str] | None = None,
    total: int | None = None,
    elapsed: float = 10.0,
) -> Meter:
    """A meter at the end of a run: `errors` are messages by code; `truncated` rows are among the
    completed. Every completed row has 100 prompt tokens, 40 of them cached, and 20 generated."""
    clock = Clock()
    made = Meter(clock)
    made.expected = total
    for _ in range(reused):
        made.reused("stop")
    for index in range(completed):
        made.completed(100, 40, 20, "length" if index < truncated else "stop")
    for line, (code, message) in enumerate((errors or {}).items(), start=1):
        made.failed(RowError(code, message), Row(line - 1, "in.jsonl", line, f"id-{line}"))
    with made.phase("load"):
        clock.now += elapsed / 4
    clock.now += elapsed - elapsed / 4
    return made


def stats(**values: Any) -> EngineStats:
    figures: dict[str, Any] = {
        "prefill_seconds": 2.0,
        "decode_seconds": 4.0,
        "prefill_tokens": 600,
        "cached_tokens": 400,
        "decode_tokens": 200,
        "decode_steps": 50,
        "row_steps": 400,
        "peak_running": 10,
        "kv_bytes_peak": GB // 4,
    }
    return EngineStats(**(figures | values))


def summary(
    made: Meter, *, output: str = "out.parquet", engine: EngineStats | None = None, **values: Any
) -> Summary:
    given: dict[str, Any] = {"model": "some-model", "device": CPU, "peak_memory": (GB, 3 * GB // 2)}
    return summarize(made, engine or stats(), config(output), **(given | values))
