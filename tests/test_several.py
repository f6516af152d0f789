"""One file whose rows name several models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchrun
from batchrun.errors import UsageError
from batchrun.report.summary import Summary
from tests.running import alone, computed, read_parquet, write_jsonl

TEXT = "The quick brown fox"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def run(rows: list[Any], output: Path, **flags: Any) -> Summary:
    path = write_jsonl(output.with_name("in.jsonl"), rows)
    return batchrun.run(path, output=output, max_tokens=5, quiet=True, **flags)


def test_each_row_runs_on_the_model_that_it_names(
    output: Path, tiny_model: Callable[..., Path]
) -> None:
    paths = {"small": tiny_model("llama"), "large": tiny_model("qwen3")}
    names = ["small", "large", "small", "large", "large"]
    rows: list[Any] = [{"prompt": f"{TEXT} {i}", "model": name} for i, name in enumerate(names)]
    rows += [{"prompt": TEXT, "model": "other"}, {"prompt": TEXT}, b"{"]
    model_map = [f"{name}={path}" for name, path in paths.items()]

    summary = run(rows, output, model_map=model_map)

    assert (summary.exit_status, summary.request_counts.total) == (3, 8)
    assert summary.request_counts.failed == 3
    written = read_parquet(output)
    assert [row["row"] for row in written] == list(range(8))
    for i, name in enumerate(names):
        assert written[i]["text"] == alone(paths[name]).complete(f"{TEXT} {i}", 5)
    assert [row["error_code"] for row in written[5:7]] == ["model_not_found"] * 2
    assert summary.models_named == {"small": 2, "large": 3}

    again = run(rows, output, model_map=model_map)
    assert computed(again) == 0
    assert again.request_counts.reused == 5


def test_all_other_rows_run_on_the_runs_model(
    output: Path, tiny_model: Callable[..., Path]
) -> None:
    first, second = tiny_model("llama"), tiny_model("qwen3")
    rows = [{"prompt": TEXT}, {"prompt": TEXT, "model": "b"}, {"prompt": TEXT, "model": "c"}]

    assert run(rows, output, model=str(first), model_map=f"b={second}").exit_status == 0

    texts = [row["text"] for row in read_parquet(output)]
    assert texts == [alone(path).complete(TEXT, 5) for path in (first, second, first)]


@pytest.mark.parametrize(
    ("model_map", "message"),
    [("a", "NAME=MODEL"), ("=a", "NAME=MODEL"), (["a=b", "a=c"], "twice")],
)
def test_a_map_that_is_none_is_a_usage_error(output: Path, model_map: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run([{"prompt": TEXT}], output, model_map=model_map)


def test_standard_input_is_read_only_once(output: Path) -> None:
    with pytest.raises(UsageError, match="only once"):
        batchrun.run("-", output=output, model_map="a=b", quiet=True)
