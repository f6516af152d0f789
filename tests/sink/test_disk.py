"""Disks that are full, really full where the tests may mount one, or limited in file size."""

from __future__ import annotations

import base64
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from batchrun.config import OutputFormat
from batchrun.errors import RunError
from batchrun.sink import Counts, Journal, write_output
from tests.sink.builders import chat, failure, has_answers, make_answer, make_row, names

ROOT = Path(__file__).parents[2]

LIMITED = """
import resource, sys
from pathlib import Path
from batchrun.errors import RunError
from batchrun.sink import Journal, write_output

journal = Journal(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_output(journal, Path(sys.argv[2]), sys.argv[3])
except RunError as error:
    sys.exit(str(error))
"""


def noise(length: int) -> str:
    """Text that does not compress."""
    return base64.b85encode(random.Random(length).randbytes(length)).decode()


def fill(journal: Journal, rows: int) -> None:
    for index in range(rows):
        journal.add_row(chat(make_row(index)), f"k{index}")
        journal.add_answer(make_answer(f"k{index}", text=noise(20_000 + index)))
    journal.commit()


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_full_disk_leaves_the_old_output_and_says_so(
    journal: Journal, small_disk: Path, kind: OutputFormat
) -> None:
    output = small_disk / f"out.{kind}"
    output.write_text("old")
    fill(journal, 80)
    with pytest.raises(RunError, match=r"disk is full.*finished rows are kept"):
        write_output(journal, output, kind)
    assert output.read_text() == "old"
    assert names(small_disk) == [f"out.{kind}"]
    assert journal.counts() == Counts(80, 80, 0)


def test_a_full_disk_leaves_a_folder_of_parts_as_it_was(journal: Journal, small_disk: Path) -> None:
    folder = small_disk / "labels"
    fill(journal, 2)
    write_output(journal, folder, "parts")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    journal.start()
    fill(journal, 80)
    with pytest.raises(RunError, match=r"disk is full.*finished rows are kept"):
        write_output(journal, folder, "parts", drops_removed=True)

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert journal.counts() == Counts(80, 80, 0)


def test_a_full_disk_for_the_failed_rows_leaves_nothing(journal: Journal, small_disk: Path) -> None:
    for index in range(80):
        journal.add_failure(failure(make_row(index, kept={"noise": noise(20_000 + index)})))
    with pytest.raises(RunError, match="disk is full"):
        write_output(journal, small_disk / "out.parquet", "parquet")
    assert names(small_disk) == []


def test_a_journal_on_a_full_disk_keeps_what_was_committed(small_disk: Path) -> None:
    journal = Journal(small_disk / "out.journal")
    safe = 0
    with pytest.raises(RunError, match="full"):
        while True:
            journal.add_answer(make_answer(f"k{safe}", text=noise(20_000)))
            journal.commit()
            safe += 1
    journal.close()
    again = Journal(small_disk / "out.journal")
    assert safe > 5
    assert all(has_answers(again, f"k{index}", 1) for index in range(safe))
    again.close()


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_file_size_limit_leaves_the_old_output_and_says_so(
    journal: Journal, tmp_path: Path, kind: OutputFormat
) -> None:
    folder = tmp_path / "outputs"
    folder.mkdir()
    output = folder / f"out.{kind}"
    output.write_text("old")
    fill(journal, 20)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(journal.path), str(output), kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert output.read_text() == "old"
    assert names(folder) == [output.name]
