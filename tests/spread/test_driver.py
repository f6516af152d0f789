"""Runs on a real cluster of two workers: the same as without, whatever dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchrun
from batchrun.report.summary import Summary
from tests.running import computed, read_jsonl, read_parquet, write_jsonl
from tests.spread.conftest import same

pytest.importorskip("ray")

from batchrun.spread import driver
from tests.spread.deadly import ALWAYS, ONCE, DeadlyWorker, mark

Runner = Callable[..., Summary]
ALONE: dict[str, Any] = {"ray": None, "workers": None, "output": "alone.parquet"}


def rows(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"custom_id": f"r{i}", "prompt": f"a word about {i}"} | fields for i in range(count)]


@pytest.fixture
def deadly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Worker", DeadlyWorker)


@pytest.mark.usefixtures("deadly")
def test_every_row_is_as_on_one_machine_though_a_worker_is_killed(
    spread: Runner, tmp_path: Path
) -> None:
    hot = {"prompt": "once upon a time", "temperature": 1.5, "max_tokens": 6}
    chat = [{"role": "user", "content": "hello"}]
    given = [
        *rows(45, colour="red"),
        *[hot, {"messages": chat, "n": 2, "temperature": 1.0}, hot, *rows(2)],
        *[hot | {"seed": 3}, {"prompt": ""}, b"no json", hot, {"prompt": "abc", "logprobs": 2}],
        *[{"context": "a b", "continuation": " c"}, {"prompt": [40, *ONCE, 41]}],
    ]
    alone = spread(given, keep=["colour"], **ALONE)
    summary = spread(given, keep=["colour"])

    assert mark(tmp_path / "out.parquet").exists()
    assert same(tmp_path / "out.parquet") == same(tmp_path / "alone.parquet")
    errors = [tmp_path / f"{name}.errors.jsonl" for name in ("out", "alone")]
    assert errors[0].read_bytes() == errors[1].read_bytes()
    assert (summary.exit_status, summary.status) == (3, "completed_with_failures")
    assert summary.request_counts == alone.request_counts
    assert summary.finish_reasons == alone.finish_reasons
    assert summary.tokens.completion == alone.tokens.completion
    assert summary.device["kind"] == alone.device["kind"]
    assert summary.notes[0].startswith("3 workers on 1 machine")
    assert summary.notes[1].startswith("A worker died 1 time ")
    report = json.loads((tmp_path / "out.report.json").read_text())
    assert report["figures"]["latency"]["count"] > 45
    assert (tmp_path / "out.report.html").exists()


@pytest.mark.usefixtures("deadly")
def test_a_row_that_kills_its_worker_twice_fails_and_what_is_answered_is_not_computed(
    spread: Runner, tmp_path: Path
) -> None:
    spread(rows(20), **ALONE | {"output": "out.parquet"})
    bad = {"custom_id": "bad", "prompt": [40, *ALWAYS, 41]}
    summary = spread([*rows(3, prompt="new"), bad, *rows(21)])

    assert (summary.exit_status, summary.request_counts.failed) == (3, 1)
    assert (computed(summary), summary.request_counts.reused) == (2, 22)
    (failed,) = read_jsonl(tmp_path / "out.errors.jsonl")
    assert (failed["custom_id"], failed["error"]["code"]) == ("bad", "worker_died")
    assert any(note.startswith("A worker died 2 times ") for note in summary.notes)
    assert [row["row"] for row in read_parquet(tmp_path / "out.parquet")] == list(range(25))


def test_inputs_of_any_size_and_none_go_to_a_folder(
    spread: Runner, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    spread(rows(9), **ALONE | {"output": "out", "format": "parts"})
    (tmp_path / "more.csv").write_text("custom_id,prompt\n")
    write_jsonl(tmp_path / "most.jsonl", rows(60)[9:])
    summary = batchrun.run(
        *(tmp_path / name for name in ("in.jsonl", "more.csv", "most.jsonl")),
        output=tmp_path / "out",
        model=str(tiny_model("llama")),
        max_tokens=4,
        quiet=True,
        ray="local",
        workers=2,
    )

    assert (summary.exit_status, computed(summary)) == (0, 51)
    parts = [read_parquet(path) for path in sorted((tmp_path / "out").iterdir())]
    assert [len(part) for part in parts] == [9, 51]


def test_an_empty_input_and_a_worker_with_other_files(
    spread: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spread([]).request_counts.total == 0

    order = driver.Order
    monkeypatch.setattr(driver, "Order", lambda *given: order(*given[:2], "other", *given[3:]))
    summary = spread(rows(3))
    assert (summary.exit_status, summary.status) == (1, "failed")
    assert "has other files for the model" in str(summary.reason)
