"""One rank alone, and what ends one that waits for others in vain."""

from __future__ import annotations

import subprocess
import sys

import pytest

from batchrun import ranks
from batchrun.errors import RunError, UsageError
from batchrun.ranks import ALONE, Ranks
from tests.command import DEADLINE, ROOT


class Two:
    """A group of two ranks, of which this is the second."""

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 1


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


def test_after_a_failed_step_nothing_more_is_said() -> None:
    second = Ranks(Two())

    reason = r"rank 1 of 2 cannot go on \(ValueError: odd\)"
    with pytest.raises(RunError, match=reason), second.step():
        raise ValueError("odd")
    with pytest.raises(RunError, match="not in step"):
        second.share(1)


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
    done = subprocess.run(
        [sys.executable, "-c", STUCK.format(what=what)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )

    assert done.returncode == status, done.stderr
    assert ("Error: rank 1 of 2 cannot go on" in done.stderr) == bool(status)
    assert ("on" in done.stdout) != bool(status)
