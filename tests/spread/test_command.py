"""The command with workers of its own: stopped and killed, it goes on, and leaves no process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.command import DEADLINE, Command, answers
from tests.running import write_jsonl
from tests.spread.conftest import same

pytest.importorskip("ray")

FLAGS = ("--max-tokens", "16", "--quiet")
RAY = ("--ray", "--workers", "2")
ROWS = [{"prompt": f"about {number} of the things"} for number in range(1500)]


@pytest.fixture
def start(tmp_path: Path, tiny_model: Callable[..., Path]) -> Iterator[Callable[..., Command]]:
    write_jsonl(tmp_path / "in.jsonl", ROWS)
    started: list[Command] = []

    def start(*flags: str, output: str = "out.parquet") -> Command:
        # A group of its own, so that what is left of it can be seen.
        command = Command(
            tmp_path,
            *flags,
            model=tiny_model("llama"),
            output=output,
            start_new_session=True,
        )
        started.append(command)
        return command

    yield start
    for command in started:
        command.stop()
        for process in left_of(command.process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def wait_for_the_end_of(session: int, *but: str) -> None:
    """Until no process of a session is there, but those whose names begin so."""
    end = time.monotonic() + DEADLINE
    while left := [name for name in left_of(session).values() if not name.startswith(but)]:
        assert time.monotonic() < end, left
        time.sleep(0.1)


def left_of(session: int) -> dict[int, str]:
    """The processes of a session that are there, by number."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session and _lives(folder):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except (ProcessLookupError, FileNotFoundError):
            continue  # just gone
    return found


def _lives(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(") ")[2][0] != "Z"


def test_killed_it_goes_on_and_stopped_too(start: Callable[..., Command], tmp_path: Path) -> None:
    alone = start(*FLAGS, output="alone.parquet")
    killed = start(*FLAGS, *RAY)
    killed.until_answered(256)
    killed.signal(signal.SIGKILL)
    assert killed.wait()[0] == -signal.SIGKILL
    before = answers(killed.journal)

    stopped = start(*FLAGS, *RAY)
    stopped.until_answered(len(before) + 64)
    stopped.signal(signal.SIGTERM)
    status, _, stderr = stopped.wait()
    assert (status, "to go on from here" in stderr) == (4, True)
    between = answers(stopped.journal)
    assert before.items() <= between.items()
    assert len(between) < len(ROWS)

    assert start(*FLAGS).wait() == (0, "", "")  # it need not be Ray that goes on
    assert alone.wait()[0] == 0
    assert same(tmp_path / "out.parquet") == same(tmp_path / "alone.parquet")
    wait_for_the_end_of(stopped.process.pid)
    # Ray's agents take a minute to see that theirs is gone; the test ends them.
    wait_for_the_end_of(killed.process.pid, "ray::DashboardAgent", "ray::RuntimeEnvAgent")
