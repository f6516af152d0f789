from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchrun.errors import UsageError
from batchrun.report.compare import comparison_text, differences
from batchrun.report.reading import read_report
from tests.report.reports import report


def written(folder: Path) -> Path:
    path = folder / "out.report.json"
    path.write_text(json.dumps(report()))
    return path


def test_a_report_is_found_by_its_own_name_and_by_its_outputs(tmp_path: Path) -> None:
    path = written(tmp_path)

    assert read_report(path) == report()
    assert read_report(tmp_path / "out.jsonl") == report()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "completed"}', "\udc80"])
def test_what_is_no_report_is_a_usage_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.report.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(UsageError, match=r"out\.report\.json"):
        read_report(path)


def test_an_output_that_has_no_report_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("{}\n")
    for name in ("out.jsonl", "gone.parquet"):
        with pytest.raises(UsageError, match=r"out\.report\.json|gone\.report\.json"):
            read_report(tmp_path / name)


def test_runs_stand_side_by_side() -> None:
    text = comparison_text([report(), report(output="other\x1b[31m.parquet")])
    lines = text.splitlines()

    assert lines[0].split() == ["run", "out.parquet", "other\ufffd[31m.parquet"]
    assert len({len(line) for line in lines}) == 1
    assert next(line for line in lines if line.startswith("rows answered")).split()[2:] == [
        "34",
        "34",
    ]


def test_only_what_was_asked_for_differently_is_listed() -> None:
    other = report()
    other["configuration"]["window"] = 7

    assert differences([report(), other]) == [("window", ["4096", "7"])]
