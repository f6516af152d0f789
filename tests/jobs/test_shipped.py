"""The jobs that come with batchrun run as they are; what starts them is well-formed."""

from __future__ import annotations

import json
import plistlib
import re
import shutil
import subprocess
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from batchrun.cli import main
from tests.command import ROOT
from tests.running import read_parquet

JOBS = sorted((ROOT / "jobs").glob("*.toml"))
STARTERS = ("crontab", "batchrun-inbox.service", "org.batchrun.inbox.plist")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jobs and samples in a folder of their own."""
    for name in ("jobs", "samples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(request: pytest.FixtureRequest, tiny_model: Callable[..., Path]) -> Path:
    if "images" not in str(request.node.name):
        return tiny_model("llama")
    from tests.tinyvision import build

    return build("qwen2_vl", request.getfixturevalue("tmp_path") / "vision")


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
def test_a_job_answers_every_row(job: Path, copy: Path, model: Path) -> None:
    flags = ("--model", str(model), "--json", "--max-tokens", "4", "--allow-sleep")
    done = CliRunner().invoke(main, ["job", f"jobs/{job.name}", *flags])
    summary = json.loads(done.stdout)

    assert (done.exit_code, summary["status"]) == (0, "completed"), done.stderr
    assert summary["request_counts"]["completed"] >= 7
    asked = (copy / "jobs" / job.name).read_text()
    assert ("[evaluation]" in asked) == (summary["evaluation"] is not None)
    assert (copy / "out").is_dir()


def test_the_inbox_is_labelled_night_by_night(copy: Path, tiny_model: Callable[..., Path]) -> None:
    command = ["job", "jobs/label_inbox.toml", "--model", str(tiny_model("llama")), "--json"]
    CliRunner().invoke(main, command)
    new = [{"id": f"n{i}", "message": f"new {i}"} for i in range(2)]
    text = "".join(json.dumps(row) + "\n" for row in new)
    (copy / "samples" / "inbox" / "2026-03-03.jsonl").write_text(text)
    second = json.loads(CliRunner().invoke(main, command).stdout)
    parts = sorted((copy / "out" / "inbox").iterdir())

    assert (second["request_counts"]["completed"], second["request_counts"]["reused"]) == (9, 7)
    assert [row["id"] for row in read_parquet(parts[-1])] == ["n0", "n1"]
    assert {row["text"] for part in parts for row in read_parquet(part)} <= {
        *("billing", "delivery", "fault", "other")
    }


@pytest.mark.parametrize("name", STARTERS)
def test_what_starts_a_job_names_one_that_is_there(name: str) -> None:
    text = (ROOT / "jobs" / name).read_text()

    named = re.findall(r"jobs/\w+\.toml", text)
    assert named
    assert all((ROOT / job).is_file() for job in named)


def test_the_launchd_example_is_a_property_list() -> None:
    job = plistlib.loads((ROOT / "jobs" / "org.batchrun.inbox.plist").read_bytes())

    assert job["Label"] == "org.batchrun.inbox"
    assert job["ProgramArguments"][1] == "job"


def test_the_systemd_examples_are_units() -> None:
    units = {}
    for kind in ("service", "timer"):
        units[kind] = ConfigParser(interpolation=None)
        units[kind].read_string((ROOT / "jobs" / f"batchrun-inbox.{kind}").read_text())

    assert units["service"]["Service"]["SuccessExitStatus"] == "3 4"
    assert units["timer"]["Install"]["WantedBy"] == "timers.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_understands_when_to_start() -> None:
    timer = (ROOT / "jobs" / "batchrun-inbox.timer").read_text()
    (when,) = re.findall(r"^OnCalendar=(.*)$", timer, re.MULTILINE)
    subprocess.run(["systemd-analyze", "calendar", when], check=True, capture_output=True)


def test_the_crontab_line_runs_in_crons_own_shell(
    copy: Path, tiny_model: Callable[..., Path]
) -> None:
    """The line itself, by /bin/sh with next to no environment; its program is a stand-in."""
    programs = copy / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "batchrun").write_text('#!/bin/sh\necho "$@"\n')
    (programs / "batchrun").chmod(0o755)
    lines = (copy / "jobs" / "crontab").read_text().splitlines()
    (line,) = (line for line in lines if re.match(r"[\d*]", line))
    command = line.split(maxsplit=5)[5]
    assert "%" not in command  # cron would end the line there
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={"BATCHRUN": str(copy)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == f"job {copy}/jobs/label_inbox.toml --quiet\n"
