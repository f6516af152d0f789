"""Keeping the machine awake, with a program in place of the system's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from batchrun.awake import kept_awake
from tests.command import ROOT


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stand-in for caffeinate writes: its arguments, and "end" when it ends."""
    program = tmp_path / "caffeinate"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/log\nshift\n/bin/"$@"\necho end >> {tmp_path}/log\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "log"


def test_the_program_runs_as_long_as_the_run(log: Path) -> None:
    with kept_awake(True):
        pass

    assert log.read_text() == "-i cat\nend\n"


def test_unless_told_not_to(log: Path) -> None:
    with kept_awake(False):
        pass

    assert not log.exists()


def test_where_there_is_no_program_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with kept_awake(True):
        pass


def test_a_run_that_is_killed_lets_the_machine_sleep_again(log: Path) -> None:
    code = (
        "import os, signal\nfrom batchrun.awake import kept_awake\n"
        "with kept_awake(True):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    # The pipe's other end closes when the last process that holds it has ended.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == -9
    deadline = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f"n=0; until /bin/grep -q end {log}; do n=$((n+1)); "
            "[ $n -lt 600 ] || exit 1; /bin/sleep 0.05; done",
        ],
        check=False,
    )
    assert deadline.returncode == 0
