from __future__ import annotations

import logging
from pathlib import Path

import pytest

from batchrun import log
from batchrun.errors import RunError, UsageError


def test_what_is_said_goes_to_stderr_and_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(logging.getLogger("batchrun").handlers)
    with log.written_to(tmp_path / "a.log"):
        log.say("hello grüße")
        log.note("for the log\n\nalone")
    log.say("not any more")
    lines = (tmp_path / "a.log").read_text(encoding="utf-8").splitlines()

    assert [line.split(" INFO ")[1] for line in lines] == ["hello grüße", "for the log", "alone"]
    assert capsys.readouterr().err == "hello grüße\nnot any more\n"
    assert logging.getLogger("batchrun").handlers == before


def test_an_error_that_ends_the_run_is_in_the_log(tmp_path: Path) -> None:
    with pytest.raises(RunError), log.written_to(tmp_path / "a.log"):
        raise RunError("the disk is full")

    assert "ERROR the disk is full" in (tmp_path / "a.log").read_text()


def test_a_log_stays_small(tmp_path: Path) -> None:
    for _ in range(3):
        with log.written_to(tmp_path / "a.log"):
            for _ in range(4):
                log.note("x" * (log.MOST_BYTES - 200))

    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"a.log", *(f"a.log.{number}" for number in range(1, log.NUM_OLD + 1))}
    assert max(sizes.values()) <= log.MOST_BYTES


def test_a_log_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--log-file"), log.written_to(tmp_path / "no" / "a.log"):
        pass
