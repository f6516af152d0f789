from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from batchrun.errors import OutputBusy, UsageError
from batchrun.sink import hold
from tests.sink.builders import names

ROOT = Path(__file__).parents[2]

HOLDER = """
import sys
from pathlib import Path
from batchrun.sink import hold

with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_an_output_that_another_run_holds_is_busy_and_names_it(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(output)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(OutputBusy, match=rf"process {child.pid}\b") as caught, hold(output):
            pass
        assert caught.value.exit_status == 75
        child.send_signal(signal.SIGKILL)
    with hold(output):
        pass
    assert names(tmp_path) == []


def test_two_runs_in_one_process_do_not_share_an_output(tmp_path: Path) -> None:
    with hold(tmp_path / "a.parquet"), hold(tmp_path / "b.parquet"):
        with pytest.raises(OutputBusy, match=str(os.getpid())), hold(tmp_path / "a.parquet"):
            pass
        assert names(tmp_path) == ["a.run.lock", "b.run.lock"]
    assert names(tmp_path) == []


def test_outputs_that_would_share_a_report_are_not_written_at_once(tmp_path: Path) -> None:
    with hold(tmp_path / "a.parquet"):
        with pytest.raises(OutputBusy, match=r"a\.jsonl is held"), hold(tmp_path / "a.jsonl"):
            pass
        with hold(tmp_path / "a.b.jsonl"):
            pass


def test_a_run_that_fails_frees_its_output(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    with pytest.raises(KeyError), hold(output):
        raise KeyError
    with hold(output):
        pass


def test_never_two_holders_while_lock_files_come_and_go(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    inside: list[int] = []

    def contend(number: int) -> int:
        entered = 0
        for _ in range(300):
            try:
                with hold(output):
                    inside.append(number)
                    assert inside == [number]
                    inside.remove(number)
                    entered += 1
            except OutputBusy:
                pass
        return entered

    with ThreadPoolExecutor(4) as pool:
        entered = list(pool.map(contend, range(4)))
    assert sum(entered) > 0
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.run.lock").mkdir()
    with pytest.raises(UsageError, match="cannot lock"), hold(tmp_path / "out.parquet"):
        pass


def test_a_run_that_waits_gets_the_output_when_it_is_free(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    asked = []
    with ExitStack() as stack:
        stack.enter_context(hold(output))

        def keeps_waiting() -> bool:
            asked.append(True)
            stack.close()
            return True

        with hold(output, keeps_waiting):
            assert asked == [True]


def test_a_run_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    with hold(output), pytest.raises(OutputBusy), hold(output, lambda: False):
        pass
