"""Runs that nobody watches: started by a clock, beside others, with next to nothing around them."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchrun.errors import RunError
from batchrun.report import page
from batchrun.report.summary import Summary
from batchrun.sink import hold
from tests.command import DEADLINE, ROOT, Command, answers
from tests.running import read_parquet, write_jsonl

JOB = """
input = "inbox"
output = "{output}"
model = "{model}"
prompt = "say {{{{ word }}}}"
keep = "word"
max-tokens = {tokens}
"""


@pytest.fixture
def job(tmp_path: Path, tiny_model: Callable[..., Path]) -> Callable[..., Path]:
    """`job(name, output, tokens)`: a job file over a folder with three rows."""
    (tmp_path / "inbox").mkdir()
    write_jsonl(tmp_path / "inbox" / "a.jsonl", [{"word": f"w{i}"} for i in range(3)])

    def make(name: str = "job.toml", output: str = "out.parquet", tokens: int = 3) -> Path:
        text = JOB.format(output=output, model=tiny_model("llama"), tokens=tokens)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return make


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`batchrun ARGUMENTS` as cron starts it: from the root folder, without terminal or input, and
    with an environment that has nothing in it but a home."""
    return subprocess.Popen(
        [sys.executable, "-m", "batchrun", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **({"env": bare(), "cwd": "/"} | options),
    )


def bare() -> dict[str, str]:
    # PYTHONPATH stands for an installed package.
    return {
        "HOME": os.environ["XDG_CACHE_HOME"],
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "MPLCONFIGDIR": os.environ["MPLCONFIGDIR"],
    }


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=DEADLINE)
    return process.returncode, stdout, stderr


def test_cron_starts_it_with_nothing_around_and_it_says_nothing(
    job: Callable[..., Path], tmp_path: Path
) -> None:
    path = job(output="labels/")
    nights = []
    for night in range(2):
        write_jsonl(tmp_path / "inbox" / f"{night}.jsonl", [{"word": f"night {night}"}])
        nights.append(end(start("job", str(path), "--quiet", umask=0o077)))
    parts = sorted((tmp_path / "labels").iterdir())

    assert nights == [(0, "", "")] * 2
    assert [len(read_parquet(part)) for part in parts] == [4, 1]
    made = [*parts, tmp_path / "labels.report.json", tmp_path / "labels.report.html"]
    assert {stat.S_IMODE(each.stat().st_mode) for each in made} == {0o600}


def test_without_a_terminal_json_is_the_only_line(job: Callable[..., Path]) -> None:
    status, stdout, stderr = end(start("job", str(job()), "--json"))

    assert (status, stderr) == (0, "")
    assert stdout.count("\n") == 1
    assert json.loads(stdout)["request_counts"]["completed"] == 3


def test_a_failing_job_says_so_in_a_line_even_when_quiet(
    job: Callable[..., Path], tmp_path: Path
) -> None:
    path = job()
    path.write_text(path.read_text() + 'log-file = "job.log"\n')
    (tmp_path / "inbox" / "b.parquet").write_bytes(b"PAR1, and no end")
    status, stdout, stderr = end(start("job", str(path), "--quiet"))

    assert (status, stdout, stderr.count("\n")) == (2, "", 1)
    assert stderr.startswith("Error: ")
    assert "b.parquet" in stderr


def long_rows(folder: Path) -> list[str]:
    """An input that goes on until it is told to end, after a first short row; and its flags."""
    rows = [{"prompt": f"go {i}", "max_tokens": 90_000, "ignore_eos": True} for i in range(2)]
    write_jsonl(folder / "in.jsonl", [{"prompt": "short", "max_tokens": 1}, *rows])
    return ["--grace", "0"]


def test_of_two_starters_one_is_busy_and_one_that_waits_goes_on_from_it(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_model("llama", max_position_embeddings=100_000)
    first = Command(tmp_path, *long_rows(tmp_path), model=model)
    try:
        first.until_answered(1)
        flags = ("in.jsonl", "-o", "out.parquet", "--model", str(model))
        status, _, stderr = end(start(*flags, cwd=tmp_path))
        assert (status, stderr.count("\n")) == (75, 1)
        waiting = start(*flags, "--wait", "--limit", "1", "--json", cwd=tmp_path)
        first.signal(signal.SIGTERM)
        assert first.wait()[0] == 4
        status, stdout, _ = end(waiting)
    finally:
        first.stop()

    assert status == 0
    assert json.loads(stdout)["request_counts"]["reused"] == 1


def test_of_several_that_start_at_once_each_row_is_answered_by_one(
    job: Callable[..., Path], tmp_path: Path
) -> None:
    path = job()
    started = [start("job", str(path), "--wait", "--json") for _ in range(3)]
    ended = [end(process) for process in started]
    counts = [json.loads(stdout)["request_counts"] for _, stdout, _ in ended]

    assert [status for status, _, _ in ended] == [0, 0, 0]
    assert sum(each["completed"] - each["reused"] for each in counts) == 3
    assert [row["word"] for row in read_parquet(tmp_path / "out.parquet")] == ["w0", "w1", "w2"]


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_a_signal_ends_one_that_waits(job: Callable[..., Path], tmp_path: Path) -> None:
    path = job()
    with hold(tmp_path / "out.parquet"):
        waiting = start("job", str(path), "--wait")
        try:
            wait_for_handler(waiting.pid)
            waiting.send_signal(signal.SIGTERM)
            status, _, stderr = end(waiting)
        finally:
            waiting.kill()

    assert status == 75
    assert "is held by another run" in stderr
    assert not (tmp_path / "out.parquet").exists()


def wait_for_handler(process: int) -> None:
    """Until SIGTERM would not end the process at once."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        (caught,) = re.findall(r"SigCgt:\t(\w+)", Path(f"/proc/{process}/status").read_text())
        if int(caught, 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.02)


def test_a_signal_ends_all_jobs_and_not_only_the_first(
    job: Callable[..., Path], tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    model = tiny_model("llama", max_position_embeddings=100_000)
    flags = long_rows(tmp_path)
    first, second = tmp_path / "first.toml", job()
    first.write_text(f'input = "in.jsonl"\noutput = "first.parquet"\nmodel = "{model}"\n')
    process = start("job", str(first), str(second), *flags)
    try:
        deadline = time.monotonic() + DEADLINE
        while not answers(tmp_path / "first.parquet.journal") and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert end(process)[0] == 4
    finally:
        process.kill()

    assert not (tmp_path / "out.parquet").exists()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def test_a_clock_that_jumps_changes_no_duration(
    run: Callable[..., Summary], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    moments = iter(range(10_000))
    monkeypatch.setattr(time, "time", lambda: now + (-1) ** next(moments) * 86_400)
    summary = run([{"prompt": "a"}, {"prompt": "b"}])

    assert summary.status == "completed"
    assert 0 < summary.elapsed_time < DEADLINE
    assert all(seconds >= 0 for seconds in summary.elapsed.values())
    assert all(0 <= row["seconds"] < DEADLINE for row in read_parquet(output))
    rates = (summary.requests_per_second, summary.tokens_per_second)
    assert all(rate is not None and rate > 0 for rate in rates)
    history = json.loads(output.with_name("out.report.json").read_text())["figures"]["history"]
    assert history["seconds"] == sorted(history["seconds"])


@pytest.mark.parametrize("step", ["render_page", "write_page"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RunError("the disk is full"), "the disk is full"),
        (OSError(28, "No space left"), "[Errno 28] No space left"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_a_page_that_cannot_be_made_changes_nothing_else(
    run: Callable[..., Summary],
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: str,
    error: Exception,
    said: str,
) -> None:
    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(page, step, fail)
    summary = run([{"prompt": "a"}])

    assert (summary.status, summary.exit_status) == ("completed", 0)
    assert output.exists()
    assert f"out.report.html: {said}\n" in capsys.readouterr().err
