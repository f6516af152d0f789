"""One cluster of two cores for all tests that need one, and what is run on it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import batchrun
from batchrun.report.summary import Summary
from tests.command import ROOT
from tests.running import read_parquet, write_jsonl

# What the machine and the neighbours of a row decide.
_OTHERS = {"seconds", "finished_at", "cached_tokens", "disk_tokens"}

Runner = Callable[..., Summary]


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    environment = {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        ray.init(
            "local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield
        ray.shutdown()


@pytest.fixture
def spread(cluster: None, tmp_path: Path, tiny_model: Callable[..., Path]) -> Runner:
    """`spread(rows, output, **flags)`: the rows through two workers, or through none of them with
    `ray=None, workers=None`."""

    def run(rows: list[Any], output: str = "out.parquet", **flags: Any) -> Summary:
        defaults: dict[str, Any] = {
            "model": str(tiny_model("llama")),
            "max_tokens": 4,
            "quiet": True,
            "ray": "local",
            "workers": 2,
            "prefix_cache_dir": tmp_path / "prefixes",
        }
        path = write_jsonl(tmp_path / "in.jsonl", rows)
        return batchrun.run(path, output=tmp_path / output, **(defaults | flags))

    return run


def same(path: Path) -> list[dict[str, Any]]:
    """The rows of an output as they are wherever they were answered, numbers to four places: the
    last ones are the batch's."""
    return [
        {name: _rounded(name, value) for name, value in row.items() if name not in _OTHERS}
        for row in read_parquet(path)
    ]


def _rounded(name: str, value: Any) -> Any:
    if name == "logprobs" and value is not None:
        return [(entry["token"], round(entry["logprob"], 4)) for entry in json.loads(value)]
    return round(value, 4) if isinstance(value, float) else value
