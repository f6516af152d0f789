"""Runs on a real cluster of two workers: the same as without, whatever dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchrun.errors import RunError
from batchrun.report.summary import Summary
from tests.running import computed, read_jsonl, read_parquet
from tests.spread.conftest import same

pytest.importorskip("ray")

from batchrun.spread import driver
from tests.spread.deadly import ALWAYS, ONCE, DeadlyWorker, mark

Runner = Callable[..., Summary]
ALONE: dict[str, Any] = {"ray": None, "workers": None, "output": "alone.parquet"}


def rows(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"custom_id": f"r{i}", "prompt": f"a word about {i}"} | fields for i in range(count)]


def test_every_row_is_as_on_one_machine(spread: Runner, tmp_path: Path) -> None:
    hot = {"prompt": "once upon a time", "temperature": 1.5, "max_tokens": 6}
    chat = [{"role": "user", "content": "hello"}]
    given = [
        *rows(45, colour="red"),
        *[hot, {"messages": chat, "n": 2, "temperature": 1.0}, hot, *rows(2)],
        *[hot | {"seed": 3}, {"prompt": ""}, b"no json", hot, {"prompt": "abc", "logprobs": 2}],
        {"context": "a b", "continuation": " c"},
    ]
    alone = spread(given, keep=["colour"], **ALONE)
    summary = spread(given, keep=["colour"])

    assert same(tmp_path / "out.parquet") == same(tmp_path / "alone.parquet")
    assert (summary.exit_status, summary.status) == (3, "completed_with_failures")
    assert (tmp_path / "out.errors.jsonl").read_bytes() == (
        tmp_path / "alone.errors.jsonl"
    ).read_bytes()
    assert summary.request_counts == alone.request_counts
    assert summary.finish_reasons == alone.finish_reasons
    assert summary.tokens.completion == alone.tokens.completion
    assert summary.device["kind"] == alone.device["kind"]
    assert summary.notes[0].startswith("2 workers on 1 machine")
    report = json.loads((tmp_path / "out.report.json").read_text())
    assert report["figures"]["latency"]["count"] > 45
    assert (tmp_path / "out.report.html").exists()


def test_what_is_answered_is_not_computed_again(spread: Runner, tmp_path: Path) -> None:
    spread(rows(20))
    again = spread([*rows(3, prompt="new"), *rows(20)])

    assert (computed(again), again.request_counts.reused) == (1, 22)
    assert len(read_parquet(tmp_path / "out.parquet")) == 23


def test_a_folder_gets_a_part_with_the_new_rows(spread: Runner, tmp_path: Path) -> None:
    spread(rows(9), output="out", format="parts")
    spread(rows(12), output="out", format="parts")
    (tmp_path / "empty").mkdir()
    spread([], output="empty")

    parts = [read_parquet(path) for path in sorted((tmp_path / "out").iterdir())]
    assert [len(part) for part in parts] == [9, 3]
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_worker_that_is_killed_is_replaced_and_its_rows_are_answered(
    spread: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "Worker", DeadlyWorker)
    given = [*rows(20), {"custom_id": "once", "prompt": [40, *ONCE, 41]}, *rows(30)]
    summary = spread(given)

    assert mark(tmp_path / "out.parquet").exists()
    spread(given, **ALONE)
    assert same(tmp_path / "out.parquet") == same(tmp_path / "alone.parquet")
    assert (summary.exit_status, summary.request_counts.completed) == (0, 51)
    assert any("died 1 time " in note for note in summary.notes)


def test_a_row_that_kills_its_worker_twice_fails_alone(
    spread: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "Worker", DeadlyWorker)
    given = [*rows(20), {"custom_id": "bad", "prompt": [40, *ALWAYS, 41]}, *rows(21)[20:]]
    summary = spread(given)

    assert (summary.exit_status, summary.request_counts.failed) == (3, 1)
    assert summary.request_counts.completed == 21
    (failed,) = read_jsonl(tmp_path / "out.errors.jsonl")
    assert (failed["custom_id"], failed["error"]["code"]) == ("bad", "worker_died")
    assert any("died 2 times " in note for note in summary.notes)


def test_an_input_that_breaks_off_fails_the_run_after_the_rows_before(
    spread: Runner, tmp_path: Path
) -> None:
    import gzip

    data = gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows(3000)))
    (tmp_path / "cut.jsonl.gz").write_bytes(data[: len(data) // 2])
    import batchrun

    summary = batchrun.run(
        tmp_path / "cut.jsonl.gz",
        output=tmp_path / "out.parquet",
        model=spread(rows(1)).model,
        ray="local",
        workers=2,
        max_tokens=1,
        quiet=True,
    )
    assert (summary.exit_status, summary.status) == (1, "failed")
    assert "cannot be read to its end" in str(summary.reason)
    assert summary.request_counts.completed > 1000


def test_a_worker_without_the_model_ends_the_run(
    spread: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = driver.Order
    monkeypatch.setattr(driver, "Order", lambda *given: order(*given[:2], "other", *given[3:]))
    with pytest.raises(RunError, match="has other files for the model"):
        spread(rows(3))
