"""Outputs read back and written in other formats."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchrun.config import OutputFormat
from batchrun.errors import UsageError
from batchrun.records import Answer, Result
from batchrun.sink import Journal, write_output
from batchrun.sink.export import export
from batchrun.sink.results import open_results
from tests.sink.builders import chat, failure, make_answer, make_row

ANSWER = make_answer(
    "k0",
    text='a,\n"b" שלום',
    logprobs=[{"token": "a", "logprob": -1.5, "bytes": [97], "top_logprobs": []}],
    tool_calls=[{"id": "1"}],
    reasoning="because",
    stop_reason=13,
)
FORMATS: tuple[OutputFormat, ...] = ("parquet", "jsonl")


@pytest.fixture
def filled(journal: Journal) -> Journal:
    """An answer, a failure of each sort, and two choices."""
    journal.add_row(chat(make_row(0, custom_id="a", kept={"id": 1, "day": date(2026, 1, 2)})), "k0")
    journal.add_answer(ANSWER)
    journal.add_failure(failure(make_row(1, custom_id="b"), param="body.messages"))
    journal.add_failure(failure(make_row(2), status=500))
    journal.add_row(chat(make_row(3, kept={"id": 2, "text": "t", "day": None}), n=2), "k3")
    journal.add_answer(make_answer("k3", 0))
    journal.add_answer(make_answer("k3", 1))
    journal.commit()
    return journal


def is_first(result: Result) -> bool | None:
    """Stands for a judge, who says nothing of failures."""
    return None if result.answer is None else result.answer.choice == 0


def without_place(result: Result) -> Result:
    """An output does not say from which file a row came; nor the errors file's columns."""
    row = replace(result.row, file="", line=0)
    return replace(result, row=row, error=None, finished_at=0.0)


def errors(results: list[Result]) -> list[tuple[str, str, int] | None]:
    return [
        each.error and (each.error.code, each.error.message, each.error.status) for each in results
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_results_come_back_as_they_were(
    filled: Journal, tmp_path: Path, kind: OutputFormat
) -> None:
    path = tmp_path / f"out.{kind}"
    write_output(filled, path, kind)
    given, found = list(filled.results()), list(open_results(path).results())

    names = [each.row.kept.pop("input_text", None) or each.row.kept.get("text") for each in found]
    assert names[-1] == "t"
    for each in [*given, *found]:
        each.row.kept.pop("text", None)
        if kind == "parquet":  # a table has every column in every row
            for name in ("id", "day"):
                each.row.kept.setdefault(name, None)
    assert list(map(without_place, found)) == list(map(without_place, given))
    assert errors(found) == errors(given)


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_an_export_there_and_back_loses_nothing(
    filled: Journal, tmp_path: Path, first: OutputFormat, second: OutputFormat
) -> None:
    paths = [tmp_path / f"{number}.{kind}" for number, kind in enumerate((first, second, first))]
    write_output(filled, paths[0], first, correct=is_first)
    counts = [export(one, other) for one, other in pairwise(paths)]

    def answers(path: Path) -> list[Answer | None]:
        return [result.answer for result in open_results(path).results()]

    assert counts == [5, 5]
    assert answers(paths[0]) == answers(paths[1]) == answers(paths[2])
    assert answers(paths[0])[0] == ANSWER
    for path in paths:
        judged = [result.correct for result in open_results(path).results()]
        assert judged == [True, None, None, True, False]
    if first == second == "jsonl":
        assert paths[2].read_text() == paths[0].read_text()


def test_the_types_of_kept_columns_survive_an_export(filled: Journal, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int8()), ("day", pa.date32())])
    write_output(filled, tmp_path / "out.parquet", "parquet", schema)
    export(tmp_path / "out.parquet", tmp_path / "again.parquet")
    found = pq.read_table(tmp_path / "again.parquet")

    assert (found.schema.field("id").type, found.schema.field("day").type) == tuple(schema.types)
    assert found["day"].to_pylist()[0] == date(2026, 1, 2)


def test_a_csv_has_a_line_per_answer_and_kept_columns(filled: Journal, tmp_path: Path) -> None:
    write_output(filled, tmp_path / "out.jsonl", "jsonl", correct=is_first)
    assert export(tmp_path / "out.jsonl", tmp_path / "out.csv") == 5
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))

    assert [line["row"] for line in lines] == ["0", "1", "2", "3", "3"]
    assert lines[0]["text"] == ANSWER.text
    assert json.loads(lines[0]["tool_calls"]) == ANSWER.tool_calls
    assert (lines[1]["error_code"], lines[1]["text"]) == ("invalid_request", "")
    assert [line["correct"] for line in lines] == ["true", "", "", "true", "false"]
    assert (lines[3]["id"], lines[3]["input_text"]) == ("2", "t")


@pytest.mark.parametrize("name", ["gone.parquet", "other.parquet", "other.jsonl", "other.txt"])
def test_what_is_no_output_is_a_usage_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "other.parquet":
        pq.write_table(pa.table({"a": [1]}), path)
    elif name != "gone.parquet":
        path.write_text('{"a": 1}\n')

    with pytest.raises(UsageError, match=name):
        list(open_results(path).results())
