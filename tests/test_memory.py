"""Memory does not grow with the input: neither by objects that each row leaves behind, nor by rows
that are kept whole. Figures of the process's own memory, not of its speed."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import batchrun
from batchrun import building
from batchrun.engine.stats import EngineStats
from batchrun.report.meter import Meter
from tests.running import write_jsonl

MB = 1e6


class Watch:
    """Stands in for the progress bar, which sees every turn: the fewest Python objects and bytes
    of arrays that were alive at once in the turns of each 500 rows."""

    seen: dict[int, tuple[int, int]]

    def __init__(self, **_: Any):
        type(self).seen = {}

    def update(self, meter: Meter, stats: EngineStats) -> None:
        now = (sys.getallocatedblocks(), mx.get_active_memory())
        span = meter.num_done // 500
        before = self.seen.get(span, now)
        self.seen[span] = (min(now[0], before[0]), min(now[1], before[1]))

    def close(self) -> None:
        gc.collect()


@pytest.fixture
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama")


def test_no_row_leaves_an_object_behind(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "Progress", Watch)
    rows = ({"prompt": f"Row {number}, one of many."} for number in range(3000))
    flags = {"model": str(model), "max_tokens": 2, "window": 32, "quiet": True}
    summary = batchrun.run(
        write_jsonl(tmp_path / "in.jsonl", rows), output=tmp_path / "out.jsonl", **flags
    )
    assert summary.request_counts.completed == 3000
    (early_blocks, early_bytes), (late_blocks, late_bytes) = Watch.seen[1], Watch.seen[5]
    # 2,000 rows later. Queues and dictionaries come and go by some hundreds of blocks, and a row
    # that stays does so with its request, its prompt and its lists: ten at least.
    assert late_blocks - early_blocks < 5000
    assert late_bytes - early_bytes < 4 * MB  # their caches are 20 MB


def test_no_row_is_kept_whole(tmp_path: Path, model: Path) -> None:
    few, many = (_peak_memory(tmp_path, model, count) for count in (600, 3000))
    # The rows between them are 72 MB. Buffers of what is read, journaled and written come and go.
    assert many - few < 40 * MB


def _peak_memory(folder: Path, model: Path, count: int) -> float:
    """Bytes that the command takes at most for `count` rows of 30,000 bytes each."""
    ballast = "All of this is carried from the input to the output. " * 566
    rows = ({"question": f"Row {number}?", "ballast": ballast} for number in range(count))
    source = write_jsonl(folder / f"{count}.jsonl", rows)
    flags = ["--prompt", "{{ question }}", "--keep-all", "--max-tokens", "2", "--window", "32"]
    flags += ["--model", str(model), "--quiet", "--json", "-o", str(folder / f"{count}.out.jsonl")]
    command = [sys.executable, "-m", "batchrun", str(source), *flags]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert report["request_counts"]["completed"] == count
    return float(report["peak_process_memory"]) * 1e9
