from __future__ import annotations

import json
import platform
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from batchrun.engine.stats import EngineStats
from batchrun.errors import RunError
from batchrun.report.summary import Outcome, page_path, report_path, report_text, write_report
from tests.report import figures

ERRORS = {"invalid_url": "no such url", "empty_prompt": "nothing to do"}


def test_the_report_of_a_run_with_failures() -> None:
    meter = figures.meter(completed=8, reused=2, truncated=1, errors=ERRORS)
    report = figures.summary(meter, notes=["a small model"]).to_dict()

    started, finished = (datetime.fromisoformat(report.pop(f"{at}_at")) for at in _ENDS)
    assert (finished - started).total_seconds() == 10
    assert report.pop("versions").keys() <= {*_PACKAGES, "python"}
    assert report.pop("configuration")["output"] == "out.parquet"
    assert report == {
        "status": "completed_with_failures",
        "exit_status": 3,
        "reason": None,
        "request_counts": {"total": 12, "completed": 10, "failed": 2, "reused": 2, "not_run": 0},
        "truncated": 1,
        "finish_reasons": {"stop": 9, "length": 1},
        "models_named": {},
        "errors": {
            "invalid_url": {
                "count": 1,
                "row": "in.jsonl:1 (custom_id id-1)",
                "message": "no such url",
            },
            "empty_prompt": {
                "count": 1,
                "row": "in.jsonl:2 (custom_id id-2)",
                "message": "nothing to do",
            },
        },
        "tokens": {"prompt": 800, "cached": 320, "completion": 160},
        "prompt_tokens": {
            "computed": 480,
            "memory": 320,
            "disk": 0,
            "disk_bytes": 0,
            "seconds_saved": 0.0,
        },
        "media": {"used": 0, "encoded": 0},
        "elapsed_time": 10.0,
        "elapsed": {"load": 2.5, "prepare": 0.0, "prefill": 2.0, "decode": 4.0, "write": 0.0},
        "requests_per_second": 0.8,
        "tokens_per_second": 16.0,
        "prompt_tps": 300.0,
        "generation_tps": 50.0,
        "batch": {
            "mean_running": 8.0,
            "peak_running": 10,
            "max_num_seqs": 32,
            "occupancy": 0.25,
            "decode_steps": 50,
            "retries": 0,
            "kv_peak_memory": 0.25,
        },
        "peak_memory": 1.0,
        "peak_process_memory": 1.5,
        "model": "some-model",
        "device": figures.CPU,
        "blas": "openblas",
        "notes": ["a small model"],
        "output": "out.parquet",
        "errors_file": "out.errors.jsonl",
        "evaluation": None,
        "report": "out.report.json",
        "page": "out.report.html",
    }


_ENDS = ("started", "finished")
_PACKAGES = ("batchrun", "mlx", "mlx-lm", "transformers")


@pytest.mark.parametrize(
    ("outcome", "errors", "status", "exit_status"),
    [
        ("finished", {}, "completed", 0),
        ("finished", ERRORS, "completed_with_failures", 3),
        ("stopped", {}, "stopped", 4),
        ("stopped", ERRORS, "stopped", 4),
        ("failed", ERRORS, "failed", 1),
    ],
)
def test_completed_is_said_only_when_every_row_has_an_answer(
    outcome: Outcome, errors: dict[str, str], status: str, exit_status: int
) -> None:
    meter = figures.meter(completed=1, errors=errors, total=9)
    summary = figures.summary(meter, outcome=outcome)

    assert (summary.status, summary.exit_status) == (status, exit_status)


@pytest.mark.parametrize(("total", "not_run"), [(9, 6), (None, None)])
def test_a_run_stopped_early_says_how_many_rows_are_left_where_that_is_known(
    total: int | None, not_run: int | None
) -> None:
    meter = figures.meter(completed=2, errors={"invalid_url": "no"}, total=total)
    counts = figures.summary(meter, outcome="stopped", reason="interrupted").request_counts

    assert (counts.total, counts.completed, counts.failed, counts.not_run) == (
        total,
        2,
        1,
        not_run,
    )


def test_a_finished_run_has_as_many_rows_as_were_seen() -> None:
    summary = figures.summary(figures.meter(completed=3, total=None))

    assert summary.request_counts.total == 3
    assert summary.request_counts.not_run == 0


def test_the_errors_file_is_named_only_where_there_is_one() -> None:
    assert figures.summary(figures.meter(completed=3)).errors_file is None
    failed = figures.meter(errors=ERRORS)
    assert figures.summary(failed, outcome="stopped").errors_file is None
    assert figures.summary(failed).errors_file == "out.errors.jsonl"


def test_rates_of_a_run_that_computed_nothing_are_unknown() -> None:
    meter = figures.meter(reused=3, elapsed=0.0)
    summary = figures.summary(meter, engine=EngineStats(), peak_memory=None, device={})

    assert summary.requests_per_second is None
    assert summary.prompt_tps is None
    assert summary.generation_tps is None
    assert summary.batch.occupancy is None
    assert (summary.peak_memory, summary.blas) == (None, None)


def test_the_most_frequent_error_comes_first() -> None:
    meter = figures.meter(errors=ERRORS)
    meter.errors["empty_prompt"].count = 5

    assert list(figures.summary(meter).errors) == ["empty_prompt", "invalid_url"]


def test_the_engines_notes_follow_the_runs() -> None:
    meter = figures.meter(completed=1)
    summary = figures.summary(meter, engine=figures.stats(notes=["engine"]), notes=["run"])

    assert summary.notes == ["run", "engine"]


def test_versions_are_those_installed() -> None:
    versions = figures.summary(figures.meter(completed=1)).versions

    assert versions["python"] == platform.python_version()
    assert versions["mlx-lm"] == version("mlx-lm")


def test_report_path_is_beside_the_output() -> None:
    assert report_path(Path("a/b.c.parquet")) == Path("a/b.c.report.json")
    assert page_path(Path("a/b.c.parquet")) == Path("a/b.c.report.html")


def test_the_report_is_json_in_utf_8_whatever_the_names_hold(tmp_path: Path) -> None:
    path = tmp_path / "out.report.json"
    path.write_text("the last run's")
    meter = figures.meter(errors={"invalid_url": "grüße 你好 \udc80 \x1b[31m"})
    summary = figures.summary(meter)
    write_report(report_text(summary, {}), path)

    text = path.read_bytes().decode("utf-8")
    assert "你好" in text
    assert json.loads(text) == summary.to_dict() | {"figures": {}}
    assert [found.name for found in tmp_path.iterdir()] == ["out.report.json"]


def test_a_report_that_cannot_be_written_is_a_run_error(tmp_path: Path) -> None:
    summary = figures.summary(figures.meter(completed=1))

    with pytest.raises(RunError, match=r"out\.report\.json"):
        write_report(report_text(summary, {}), tmp_path / "gone" / "out.report.json")
