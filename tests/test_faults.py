"""The real command under kills, signals, full disks and company: nothing finished is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import DEADLINE, Command, answers
from tests.running import read_parquet, read_summary, write_jsonl

ROWS = 100
# So few rows at a time that there is a second or two to meet them in.
SLOW = ("--max-num-seqs", "2")

LIMITED = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
runpy.run_module("batchrun", run_name="__main__")
"""


@pytest.fixture
def start(tmp_path: Path, tiny_model: Callable[..., Path]) -> Iterator[Callable[..., Command]]:
    """Starts the command on a hundred rows; what still runs at the end of a test is killed."""
    rows = [
        {"custom_id": f"r{i}", "prompt": f"row {i}", "max_tokens": 40, "ignore_eos": True}
        for i in range(ROWS)
    ]
    write_jsonl(tmp_path / "in.jsonl", rows)
    started: list[Command] = []

    def start(*flags: str, **options: Any) -> Command:
        started.append(
            Command(
                tmp_path,
                *flags,
                model=tiny_model("llama", max_position_embeddings=100_000),
                **options,
            )
        )
        return started[-1]

    yield start
    for command in started:
        command.stop()


def add_endless_rows(folder: Path) -> bytes:
    """Five rows that would take minutes join the input; returns what it was before."""
    given = (folder / "in.jsonl").read_bytes()
    long = [{"prompt": f"endless {i}", "max_tokens": 90_000, "ignore_eos": True} for i in range(5)]
    added = b"".join(json.dumps(row).encode() + b"\n" for row in long)
    (folder / "in.jsonl").write_bytes(given + added)
    return given


def finished_at(output: Path) -> dict[str, int]:
    return {
        row["request_key"]: round(row["finished_at"].timestamp() * 1e6)
        for row in read_parquet(output)
    }


def assert_whole(folder: Path, kept: dict[str, int]) -> None:
    """A hundred distinct rows, and those of `kept` as they were when they were first finished."""
    output = folder / "out.parquet"
    written = read_parquet(output)
    assert [row["custom_id"] for row in written] == [f"r{i}" for i in range(ROWS)]
    assert all(row["completion_tokens"] == 40 for row in written)
    moments = finished_at(output)
    assert len(moments) == ROWS
    assert {key: moments[key] for key in kept} == kept
    assert read_summary(output)["request_counts"]["reused"] == len(kept)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("in.jsonl", "out.parquet", "out.report.html", "out.report.json")
    ]


# ---------------------------------------------------------------- kills and signals


def test_killed_five_times_it_ends_with_every_row_once(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    moments = sorted(random.Random(51).sample(range(1, 90), 5))
    kept: dict[str, int] = {}
    for moment in moments:
        command = start(*SLOW)
        command.until_answered(max(moment, len(kept) + 1))
        command.signal(signal.SIGKILL)
        assert command.wait()[0] == -signal.SIGKILL
        now = answers(command.journal)
        assert {key: now.get(key) for key in kept} == kept
        assert not command.output.exists()
        kept = now
    status, _, stderr = start(*SLOW).wait()
    assert status == 0, stderr
    assert_whole(tmp_path, kept)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_saves_and_exits_with_4(
    start: Callable[..., Command], tmp_path: Path, number: signal.Signals
) -> None:
    command = start(*SLOW)
    command.until_answered(7)
    command.signal(number)
    status, stdout, stderr = command.wait()
    assert (status, stdout) == (4, "")
    assert "Stopping: rows that run have 30 s to finish" in stderr
    assert f"it was interrupted ({number.name})" in stderr
    assert "Stopped early: " in stderr
    assert "Run the same command again" in stderr
    kept = answers(command.journal)
    counts = read_summary(tmp_path / "out.parquet")["request_counts"]
    assert counts["completed"] == len(kept) >= 7
    # What ran was finished: no step was taken for a row that was then given up.
    batch = read_summary(tmp_path / "out.parquet")["batch"]
    assert round(batch["mean_running"] * batch["decode_steps"]) == 40 * len(kept)
    assert counts["not_run"] == ROWS - len(kept) > 0
    assert not command.output.exists()

    assert start().wait()[0] == 0
    assert_whole(tmp_path, kept)


def test_a_second_signal_ends_at_once_and_loses_nothing_finished(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    given = add_endless_rows(tmp_path)
    command = start("--max-num-seqs", "8")
    command.until_answered(5)
    command.signal(signal.SIGINT)
    assert command.process.stderr is not None
    while "Stopping" not in command.process.stderr.readline():
        pass
    command.signal(signal.SIGINT)
    assert command.wait()[0] == -signal.SIGINT
    kept = answers(command.journal)
    assert 5 <= len(kept) <= ROWS

    (tmp_path / "in.jsonl").write_bytes(given)
    assert start().wait()[0] == 0
    assert_whole(tmp_path, kept)


def test_max_time_stops_in_time_with_4(start: Callable[..., Command], tmp_path: Path) -> None:
    given = add_endless_rows(tmp_path)
    command = start("--max-time", "2s", "--grace", "1s")
    status, _, stderr = command.wait()
    assert status == 4, stderr
    assert "its time was up (--max-time)" in stderr
    assert read_summary(tmp_path / "out.parquet")["elapsed_time"] < 10
    kept = answers(command.journal)
    assert 0 < len(kept) <= ROWS
    (tmp_path / "in.jsonl").write_bytes(given)
    assert start().wait()[0] == 0
    assert_whole(tmp_path, kept)


# ---------------------------------------------------------------- company and disks


def test_a_second_run_for_the_same_output_exits_with_75(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    given = add_endless_rows(tmp_path)
    first = start()
    first.until_answered(1)
    status, stdout, stderr = start().wait()
    assert (status, stdout) == (75, "")
    assert stderr.startswith(
        f"Error: out.parquet is held by another run (process {first.process.pid}"
    )
    assert stderr.count("\n") == 1
    first.signal(signal.SIGKILL)
    first.wait()
    (tmp_path / "in.jsonl").write_bytes(given)
    assert start().wait()[0] == 0


def test_a_full_disk_is_one_clear_line_and_a_later_run_goes_on(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    """No file may grow beyond 200 KB: to the program that is a disk without room."""
    command = start(*SLOW, program=("-c", LIMITED))
    status, stdout, stderr = command.wait()
    assert (status, stdout) == (1, "")
    assert stderr.count("\n") == 1
    assert stderr.startswith("Error: cannot use the journal out.parquet.journal")
    assert "check the disk's free space" in stderr
    kept = answers(command.journal)
    assert 0 < len(kept) < ROWS
    assert not command.output.exists()

    assert start().wait()[0] == 0
    assert_whole(tmp_path, kept)


def test_a_disk_that_fills_up_loses_nothing_and_takes_the_rest_once_it_is_larger(
    small_disk: Path, tiny_model: Callable[..., Path]
) -> None:
    rows = [
        {"prompt": f"row {i}", "note": random.Random(i).randbytes(4_000).hex()} for i in range(200)
    ]
    write_jsonl(small_disk.parent / "in.jsonl", rows)
    flags = ("--keep", "note", "--max-tokens", "2", "--json")
    options: dict[str, Any] = {"model": tiny_model("llama"), "inputs": ["../in.jsonl"]}
    status, stdout, stderr = Command(small_disk, *flags, **options).wait()
    assert (status, stdout, stderr.count("\n")) == (1, "", 1)
    assert "check the disk's free space" in stderr
    kept = len(answers(small_disk / "out.parquet.journal"))
    assert not (small_disk / "out.parquet").exists()

    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    status, stdout, stderr = Command(small_disk, *flags, **options).wait()
    assert status == 0, stderr
    assert json.loads(stdout)["request_counts"]["reused"] == kept
    assert [row["note"] for row in read_parquet(small_disk / "out.parquet")] == [
        row["note"] for row in rows
    ]


# ---------------------------------------------------------------- surroundings


def test_without_a_compiler_it_works_and_names_device_and_blas(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    env |= {"PATH": str(tmp_path / "bin"), "CUDA_VISIBLE_DEVICES": ""}
    status, _, stderr = start("--limit", "5", env=env).wait()
    assert status == 0, stderr
    written = read_summary(tmp_path / "out.parquet")
    assert written["device"]["kind"] in ("cpu", "metal", "cuda")
    assert written["device"]["name"]
    assert written["blas"]
    assert f"device    {written['device']['kind']}" in stderr


def test_results_go_to_stdout_and_everything_else_to_stderr(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    status, stdout, stderr = start("--limit", "5", "--json").wait()
    assert (status, stderr) == (0, "")
    assert stdout.count("\n") == 1
    assert json.loads(stdout) == read_summary(tmp_path / "out.parquet")

    status, stdout, stderr = start("--limit", "6").wait()
    assert (status, stdout) == (0, "")
    assert stderr.startswith("6 of 6 rows answered, 5 reused\n")


def test_rows_from_a_slow_pipe_are_answered_before_it_ends(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    lines = (tmp_path / "in.jsonl").read_text().splitlines(keepends=True)
    command = start("--json", inputs=["-"], stdin=-1)
    pipe = command.process.stdin
    assert pipe is not None
    for upto in (1, 6):
        pipe.writelines(lines[len(answers(command.journal)) : upto])
        pipe.flush()
        command.until_answered(upto)
    pipe.writelines(lines[6:])
    status, stdout, stderr = command.wait()
    assert status == 0, stderr
    assert json.loads(stdout)["request_counts"]["total"] == ROWS
    assert len(read_parquet(command.output)) == ROWS


def test_a_signal_ends_a_run_that_waits_for_its_pipe(start: Callable[..., Command]) -> None:
    command = start(inputs=["-"], stdin=-1)
    assert command.process.stdin is not None
    command.process.stdin.write('{"prompt": "only", "max_tokens": 2}\n')
    command.process.stdin.flush()
    command.until_answered(1)
    command.signal(signal.SIGINT)
    assert command.process.wait(timeout=DEADLINE) == 4
