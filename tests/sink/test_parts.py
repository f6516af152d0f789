"""A folder of parts: what each run adds, and what leaves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import copyfile
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.errors import UsageError
from batchrun.sink import Journal, read_answers, write_output
from batchrun.sink.parts import part_paths
from batchrun.sink.results import open_results
from tests.sink.builders import chat, failure, make_answer, make_row

Row = tuple[str, str | None, int]  # key, custom_id, a kept value


def run(
    folder: Path, rows: Iterable[Row], *, n: int = 1, fresh: bool = False, **options: Any
) -> None:
    """As a run of these rows ends."""
    path = folder / "labels.journal"
    journal = Journal(path)
    if fresh:
        journal.start_over()
    journal.start()
    for index, (key, custom_id, value) in enumerate(rows):
        row = make_row(index, custom_id=custom_id, kept={"id": value})
        if key == "bad":
            journal.add_failure(failure(row))
            continue
        journal.add_row(chat(row, n), key)
        for choice in range(n):
            journal.add_answer(make_answer(key, choice))
    journal.commit()
    write_output(journal, folder / "labels", "parts", **options)
    journal.delete()


def found(folder: Path) -> list[tuple[str | None, str | None, int]]:
    results = open_results(folder / "labels").results()
    return [(each.key, each.row.custom_id, each.row.kept["id"]) for each in results]


A, B, C = ("ka", "a", 1), ("kb", "b", 2), ("kc", None, 3)


def test_each_run_adds_a_part_with_what_is_new(tmp_path: Path) -> None:
    run(tmp_path, [A, B])
    first = (tmp_path / "labels" / "part-00001.parquet").read_bytes()
    run(tmp_path, [C, A, B])

    assert [path.name for path in part_paths(tmp_path / "labels")] == [
        "part-00001.parquet",
        "part-00002.parquet",
    ]
    assert (tmp_path / "labels" / "part-00001.parquet").read_bytes() == first
    assert found(tmp_path) == [A, B, C]


def test_a_run_without_anything_new_adds_nothing(tmp_path: Path) -> None:
    run(tmp_path, [A, B])
    run(tmp_path, [B, A])

    assert len(part_paths(tmp_path / "labels")) == 1


def test_rows_that_ask_the_same_are_told_apart_by_what_they_keep(tmp_path: Path) -> None:
    run(tmp_path, [("ka", None, 1)])
    run(tmp_path, [("ka", None, 2), ("ka", None, 1), ("ka", None, 2)])

    assert found(tmp_path) == [("ka", None, 1), ("ka", None, 2), ("ka", None, 2)]


def test_a_failed_row_is_in_no_part_and_comes_when_it_is_answered(tmp_path: Path) -> None:
    run(tmp_path, [A, ("bad", "b", 2)])
    errors = (tmp_path / "labels.errors.jsonl").read_text()
    run(tmp_path, [A, B])

    assert json.loads(errors)["custom_id"] == "b"
    assert found(tmp_path) == [A, B]
    assert not (tmp_path / "labels.errors.jsonl").exists()


def test_all_choices_of_a_row_go_together(tmp_path: Path) -> None:
    run(tmp_path, [A], n=2)
    run(tmp_path, [A, B], n=2)

    assert found(tmp_path) == [A, A, B, B]
    assert [each.row.index for each in open_results(tmp_path / "labels").results()] == [0, 0, 1, 1]
    run(tmp_path, [B], n=2, drops_removed=True)
    assert found(tmp_path) == [B, B]


def test_rows_that_the_input_lost_stay_or_go(tmp_path: Path) -> None:
    run(tmp_path, [A, B])
    run(tmp_path, [B, C])
    assert found(tmp_path) == [A, B, C]
    run(tmp_path, [B, C], drops_removed=True)
    assert found(tmp_path) == [B, C]
    run(tmp_path, [C], drops_removed=True)

    assert found(tmp_path) == [C]
    assert [path.name for path in part_paths(tmp_path / "labels")] == ["part-00002.parquet"]


def test_a_run_that_starts_over_replaces_all_parts(tmp_path: Path) -> None:
    run(tmp_path, [A, B])
    run(tmp_path, [A, C], fresh=True)

    assert found(tmp_path) == [A, C]
    assert [path.name for path in part_paths(tmp_path / "labels")] == ["part-00002.parquet"]


ROWS = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from([None, "a"]), st.integers(0, 1)), max_size=6
)


@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=4))
def test_whatever_comes_and_goes_the_folder_has_each_row_as_often_as_it_should(
    tmp_path_factory: pytest.TempPathFactory, nights: list[tuple[list[Row], bool]]
) -> None:
    folder = tmp_path_factory.mktemp("nights")
    expected: Counter[Row] = Counter()
    for rows, drops_removed in nights:
        run(folder, rows, drops_removed=drops_removed)
        asked = Counter(rows)
        expected = asked if drops_removed else expected | asked

        assert Counter(found(folder)) == expected  # type: ignore[comparison-overlap]


def test_answers_of_all_parts_are_reused(tmp_path: Path) -> None:
    run(tmp_path, [A])
    run(tmp_path, [B])

    assert [each.key for each in read_answers(tmp_path / "labels", "parts")] == ["ka", "kb"]


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"PAR1"), None])
def test_a_file_that_is_no_part_is_a_usage_error(
    tmp_path: Path, spoil: Callable[[Path], Any] | None
) -> None:
    run(tmp_path, [A])
    part = tmp_path / "labels" / "part-00001.parquet"
    if spoil is None:
        pq.write_table(pq.read_table(part).drop_columns("row_key"), part)
    else:
        spoil(part)

    with pytest.raises(UsageError, match="is not an output of batchrun in parts form"):
        list(read_answers(tmp_path / "labels", "parts"))


def test_a_copy_beside_the_parts_does_no_harm(tmp_path: Path) -> None:
    run(tmp_path, [("a", None, 1)])
    labels = tmp_path / "labels"
    copyfile(labels / "part-00001.parquet", labels / "part-00001 (1).parquet")
    run(tmp_path, [("b", None, 2)])

    assert (labels / "part-00002.parquet").exists()
