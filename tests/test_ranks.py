"""One rank alone, and what ends one that waits for others in vain."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from batchrun import ranks
from batchrun.errors import UsageError
from batchrun.ranks import ALONE, Ranks
from tests.command import DEADLINE, ROOT


class Two:
    """A group of two ranks, of which this is one."""

    def __init__(self, rank: int = 1):
        self._rank = rank

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return self._rank


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )


def test_one_alone_shares_with_itself() -> None:
    value = {"a": (1, 2)}

    assert ALONE.share(value) is value
    assert ALONE.gather(value) == [value]
    assert ALONE.turn(1) == (1, [])
    assert not ALONE.are_many
    assert ranks.join() is ALONE


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"MLX_RANK": "1"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "0"}, 0),
        ({"MLX_RANK": ""}, None),
    ],
)
def test_the_environment_tells_a_rank(
    environment: dict[str, str], rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert ranks.launched_as() == rank


# A step that fails, and then a call that keeps Python's lock, as MLX's can in a group that broke.
FAILED = """
import ctypes
from batchrun import ranks
from batchrun.errors import RunError
from tests.test_ranks import Two
ranks.LATE_SECONDS = 1
two = ranks.Ranks(Two({rank}))
try:
    with two.step():
        raise ValueError("odd")
except RunError as error:
    print(error)
try:
    two.share(1)
except RunError as error:
    print(error, flush=True)
ctypes.PyDLL(None).sleep(600)
"""


def test_after_a_failed_step_rank_0_says_nothing_more_and_ends_soon() -> None:
    done = python(FAILED.format(rank=0))

    reason, refusal = done.stdout.splitlines()
    assert reason.startswith("rank 0 of 2 cannot go on (ValueError: odd)")
    assert "not in step" in refusal
    assert done.returncode == -signal.SIGALRM


def test_a_failed_step_ends_a_rank_that_follows() -> None:
    done = python(FAILED.format(rank=1))

    assert done.stderr.startswith("Error: rank 1 of 2 cannot go on (ValueError: odd)")
    assert (done.returncode, done.stdout) == (1, "")


def test_an_error_that_all_have_breaks_nothing() -> None:
    second = Ranks(Two())

    with pytest.raises(UsageError), second.step():
        raise UsageError("wrong")
    assert not second.is_broken


# A main thread that signals do not bring back, as where MLX waits for a rank that is gone.
STUCK = """
import os, signal, threading
from batchrun import ranks
from tests.test_ranks import Two
ranks.LATE_SECONDS = 0.01
signal.signal(signal.SIGTERM, lambda *_: None)
with ranks.Ranks(Two()).watched(grace=0.01):
    os.kill(os.getpid(), signal.SIGTERM)
    {what}
print("on")
"""


@pytest.mark.parametrize(("what", "status"), [("threading.Event().wait()", 1), ("pass", 0)])
def test_a_signal_ends_a_rank_that_is_stuck_and_no_other(what: str, status: int) -> None:
    done = python(STUCK.format(what=what))

    assert done.returncode == status, done.stderr
    assert ("Error: rank 1 of 2 cannot go on" in done.stderr) == bool(status)
    assert ("on" in done.stdout) != bool(status)
