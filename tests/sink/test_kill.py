"""Real SIGKILLs: what was committed is there afterwards, and outputs are whole or absent."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from batchrun.config import OutputFormat
from batchrun.sink import Journal, write_output
from tests.sink.builders import chat, has_answers, make_answer, make_row, names

ROOT = Path(__file__).parents[2]

# Commits after every 1 to 5 rows and then says how many rows are safe.
WRITER = """
import random, sys
from pathlib import Path
from batchrun.sink import Journal
from tests.sink.builders import chat, make_answer, make_row

round_name = sys.argv[2]
chance = random.Random(round_name)
journal = Journal(Path(sys.argv[1]))
journal.start()
index = 0
while True:
    for _ in range(chance.randint(1, 5)):
        key = f"{round_name}-{index}"
        journal.add_row(chat(make_row(index)), key)
        journal.add_answer(make_answer(key, text="x" * chance.randint(0, 5000)))
        index += 1
    journal.commit()
    print(index, flush=True)
"""

DIES_BEFORE_COMMIT = """
import os, signal, sys
from pathlib import Path
from batchrun.sink import Journal
from tests.sink.builders import make_answer

journal = Journal(Path(sys.argv[1]))
journal.add_answer(make_answer("safe"))
journal.commit()
journal.add_answer(make_answer("lost"))
os.kill(os.getpid(), signal.SIGKILL)
"""

DIES_BEFORE_RENAME = """
import os, signal, sys
from pathlib import Path
from batchrun.sink import Journal, write_output

os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
write_output(Journal(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])
"""


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_after(lines: int, path: Path, name: str) -> int:
    """Runs the writer, kills it once it has reported `lines` commits; returns the rows reported."""
    with python(WRITER, str(path), name) as child:
        assert child.stdout is not None
        for _ in range(lines):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        reported = child.stdout.read().split("\n")
    assert child.returncode == -signal.SIGKILL
    # The last line may be cut in its middle; the one before it is whole.
    return int(reported[-2]) if len(reported) > 1 else lines


def test_killed_at_any_moment_no_committed_answer_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "out.journal"
    chance = random.Random(7)
    safe: dict[str, int] = {}
    for number in range(6):
        name = f"round{number}"
        safe[name] = kill_after(chance.randint(1, 120), path, name)
        journal = Journal(path)
        for known, count in safe.items():
            assert all(has_answers(journal, f"{known}-{index}", 1) for index in range(count))
        assert journal.counts().pending == 0
        journal.close()
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.close()


def test_killed_before_a_commit_the_journal_opens_with_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "out.journal"
    with python(DIES_BEFORE_COMMIT, str(path)) as child:
        pass
    assert child.returncode == -signal.SIGKILL
    journal = Journal(path)
    assert has_answers(journal, "safe", 1)
    assert not has_answers(journal, "lost", 1)
    journal.close()


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_killed_before_the_rename_the_old_output_stands_and_the_next_run_tidies_up(
    journal: Journal, tmp_path: Path, kind: OutputFormat
) -> None:
    journal.add_row(chat(make_row()), "k")
    journal.add_answer(make_answer("k"))
    journal.commit()
    folder = tmp_path / "outputs"
    folder.mkdir()
    output = folder / f"out.{kind}"
    output.write_text("old")
    with python(DIES_BEFORE_RENAME, str(journal.path), str(output), kind) as child:
        pass
    assert child.returncode == -signal.SIGKILL
    assert output.read_text() == "old"
    assert names(folder) == [f".out.{kind}.tmp-{child.pid}", f"out.{kind}"]
    write_output(journal, output, kind)
    assert output.read_bytes() != b"old"
    assert names(folder) == [f"out.{kind}"]
