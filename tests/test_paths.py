from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchrun import paths
from batchrun.errors import UsageError
from batchrun.remote import Place


def check_output(output: Path, inputs: list[str], *, is_folder: bool = False) -> None:
    paths.check_output(Place(output), inputs, is_folder=is_folder)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n")
    return path


def test_a_new_file_and_an_earlier_output_are_fine(rows: Path, tmp_path: Path) -> None:
    check_output(tmp_path / "out.jsonl", [str(rows), "-"])
    (tmp_path / "out.jsonl").write_text("{}\n")
    check_output(tmp_path / "out.jsonl", [str(rows), "-"])


def test_an_output_without_a_folder_is_in_the_current_one(
    rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rows.parent)
    check_output(Path("out.jsonl"), ["rows.jsonl"])
    with pytest.raises(UsageError, match=r"rows\.jsonl: is an input"):
        check_output(Path("rows.jsonl"), ["rows.jsonl"])


def test_the_input_under_another_spelling_is_refused(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    spelled = tmp_path / "sub" / ".." / "rows.jsonl"
    with pytest.raises(UsageError, match="is an input, and this run would replace it"):
        check_output(spelled, [str(rows)])


def test_a_symbolic_link_to_the_input_is_refused(rows: Path, tmp_path: Path) -> None:
    link = tmp_path / "out.jsonl"
    link.symlink_to(rows)
    with pytest.raises(UsageError, match="is an input"):
        check_output(link, [str(rows)])


def test_a_hard_link_to_the_input_is_refused(rows: Path, tmp_path: Path) -> None:
    os.link(rows, tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match="is an input"):
        check_output(tmp_path / "out.jsonl", [str(rows)])


@pytest.mark.parametrize("beside", ["out.errors.jsonl", "out.report.json", "out.report.html"])
def test_an_input_among_the_files_beside_the_output_is_refused(tmp_path: Path, beside: str) -> None:
    (tmp_path / beside).write_text("{}\n")
    with pytest.raises(UsageError, match=f"{beside}: is an input"):
        check_output(tmp_path / "out.parquet", [str(tmp_path / beside)])


def test_a_folder_is_no_file(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder, and can only hold parts"):
        check_output(tmp_path, [str(rows)])


def test_a_folder_of_parts_is_new_or_has_parts_alone(rows: Path, tmp_path: Path) -> None:
    check_output(tmp_path / "labels", [str(rows)], is_folder=True)
    (tmp_path / "labels").mkdir()
    for name in ("part-00001.parquet", ".part-00002.parquet.tmp-1", "_SUCCESS"):
        (tmp_path / "labels" / name).touch()
    check_output(tmp_path / "labels", [str(rows)], is_folder=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.csv").touch()
    with pytest.raises(UsageError, match=r"holds mine\.csv, which is no part"):
        check_output(tmp_path / "data", [str(rows)], is_folder=True)
    with pytest.raises(UsageError, match="is there and is no folder"):
        check_output(rows, ["-"], is_folder=True)
    with pytest.raises(UsageError, match="is an input, and lies in the output"):
        part = tmp_path / "labels" / "part-00001.parquet"
        check_output(tmp_path / "labels", [str(part)], is_folder=True)


def test_a_pipe_is_not_replaced_by_a_file(rows: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.jsonl")
    with pytest.raises(UsageError, match=r"out\.jsonl: is there and is no file; move it away"):
        check_output(tmp_path / "out.jsonl", [str(rows)])


def test_a_device_is_not_replaced_by_a_file(rows: Path) -> None:
    with pytest.raises(UsageError, match="null: is there and is no file"):
        check_output(Path(os.devnull), [str(rows)])


@pytest.mark.parametrize("beside", ["out.errors.jsonl", "out.report.json", "out.report.html"])
def test_a_folder_in_the_place_of_a_file_beside_the_output_is_refused(
    rows: Path, tmp_path: Path, beside: str
) -> None:
    (tmp_path / beside).mkdir()
    with pytest.raises(UsageError, match=f"{beside}: is there and is no file"):
        check_output(tmp_path / "out.parquet", [str(rows)])


def test_a_folder_that_is_not_there_is_refused(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mkdir -p .*/gone"):
        check_output(tmp_path / "gone" / "out.jsonl", [str(rows)])


def test_a_link_into_a_folder_that_is_not_there_is_refused(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "gone" / "out.jsonl")
    with pytest.raises(UsageError, match=r"mkdir -p .*/gone"):
        check_output(tmp_path / "out.jsonl", [str(rows)])


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output_is_refused(rows: Path, name: str) -> None:
    with pytest.raises(UsageError, match="-o needs a file"):
        check_output(Path(name), [str(rows)])
