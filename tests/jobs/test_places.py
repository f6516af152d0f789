from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from batchrun.errors import UsageError
from batchrun.jobs.places import place

NOW = datetime(2026, 3, 7, 4, 5)
HOME = str(Path.home())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rows.jsonl", "/jobs/rows.jsonl"),
        ("../data/*.csv", "/data/*.csv"),
        ("labels/", "/jobs/labels/"),
        ("/data/rows.csv", "/data/rows.csv"),
        ("-", "-"),
        ("~/rows.csv", f"{HOME}/rows.csv"),
        ("$DATA/rows.csv", "/srv/rows.csv"),
        ("${DATA}s/rows.csv", "/srvs/rows.csv"),
        ("cost$$.csv", "/jobs/cost$.csv"),
        ("%Y/%m-%d.parquet", "/jobs/2026/03-07.parquet"),
        ("100%%.parquet", "/jobs/100%.parquet"),
    ],
)
def test_paths_are_filled_in(text: str, expected: str) -> None:
    assert place(text, Path("/jobs"), {"DATA": "/srv"}, NOW) == expected


def test_a_folder_with_brackets_in_its_name_is_no_pattern() -> None:
    assert place("*.csv", Path("/jobs[1]"), {}, NOW) == "/jobs[[]1]/*.csv"
    assert place("a.csv", Path("/jobs[1]"), {}, NOW) == "/jobs[1]/a.csv"


def test_a_detour_over_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "far" / "jobs").mkdir(parents=True)
    (tmp_path / "jobs").symlink_to(tmp_path / "far" / "jobs")
    detour = f"{tmp_path}/jobs/../rows.csv"

    assert place("../rows.csv", tmp_path / "jobs", {}, NOW) == detour


def test_a_variable_that_is_not_set_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no variable DATA"):
        place("$DATA/rows.csv", Path(), {}, NOW)


def test_what_a_variable_holds_is_taken_as_it_is() -> None:
    assert place("$A", Path("/jobs"), {"A": "/%Y/$B"}, NOW) == "/%Y/$B"
