"""batchrun report: after a real run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from batchrun import run
from batchrun.cli import main
from tests.running import write_jsonl


@pytest.fixture
def output(
    tmp_path: Path, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Of a run of two rows."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "one two", "max_tokens": 3}, {"prompt": "three", "max_tokens": 2}]
    write_jsonl(tmp_path / "in.jsonl", rows)
    run("in.jsonl", output="out.parquet", model=str(tiny_model("llama")), quiet=True)
    return Path("out.parquet")


def test_a_run_leaves_a_page_and_report_makes_it_again(output: Path) -> None:
    page = Path("out.report.html")
    first = page.read_text()
    page.unlink()
    done = CliRunner().invoke(main, ["report", "out.parquet"])

    assert done.exit_code == 0
    assert page.read_text() == first
    assert "three" in first


def test_an_output_that_moved_carries_its_report(output: Path) -> None:
    os.mkdir("elsewhere")
    os.rename("out.parquet", "elsewhere/moved.parquet")
    done = CliRunner().invoke(main, ["report", "elsewhere/moved.parquet", "--json"])
    content = json.loads(done.stdout)

    assert content["request_counts"]["completed"] == 2
    assert content["tokens"]["completion"] == 5


def test_several_are_compared(output: Path) -> None:
    done = CliRunner().invoke(main, ["report", "out.parquet", "out.report.json", "-o", "both.html"])

    assert done.exit_code == 0
    assert done.stdout.split("\n")[0].split() == ["run", "out.parquet", "out.parquet"]
    assert "2 runs compared" in Path("both.html").read_text()


def test_what_is_no_run_is_one_line(output: Path) -> None:
    done = CliRunner().invoke(main, ["report", "in.jsonl"])

    assert done.exit_code == 2
    assert done.stderr.startswith("Error: in.jsonl: there is no in.report.json beside it")


@pytest.mark.parametrize(
    ("target", "message"),
    [("no/x.html", "there is no folder no; make it with: mkdir -p no"), (".", "is no file")],
)
def test_a_page_that_has_no_place_is_one_line(output: Path, target: str, message: str) -> None:
    done = CliRunner().invoke(main, ["report", "out.parquet", "-o", target])

    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
