"""Whole runs whose answers have shapes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import batchrun
from batchrun.errors import UsageError
from batchrun.report.summary import Summary
from tests.engine.guided import PERSON
from tests.running import computed, read_jsonl, read_parquet, write_jsonl

Run = Callable[..., Summary]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(PERSON))
    return path


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def test_rows_of_every_shape_in_one_file(run: Run, output: Path, schema: Path) -> None:
    rows = [
        {"prompt": "a", "response_format": strict(PERSON)},
        {"prompt": "b"},
        {"prompt": "c", "guided_regex": "[ab]{3}"},
        {"prompt": "d", "response_format": {"type": "text"}, "max_tokens": 5},
        {"prompt": "e", "guided_json": {"enum": []}},
        {"prompt": "f", "structured_outputs": {"choice": ["yes", "no"]}},
        {"messages": [{"role": "user", "content": "g"}], "n": 3, "temperature": 1.2},
        {"prompt": "h", "max_tokens": 3},
    ]
    summary = run(rows, json_schema=schema, explode=True, max_tokens=80)
    assert summary.exit_status == 3
    answers = read_parquet(output)
    assert [row["row"] for row in answers] == [0, 1, 2, 3, 4, 5, 6, 6, 6, 7]

    by_row = {row["row"]: row for row in answers}
    for row in [*answers[:2], *answers[6:9]]:
        value = json.loads(row["text"])
        jsonschema_rs.validate(PERSON, value)
        assert row["parsed"] == row["text"]
        assert {name: row[name] for name in PERSON["properties"]} == value
    assert set(by_row[2]["text"]) <= {"a", "b"}
    assert by_row[3]["completion_tokens"] == 5
    assert by_row[4]["error_code"] == "invalid_grammar"
    assert "Unsatisfiable" in by_row[4]["error_message"]
    assert by_row[5]["text"] in ("yes", "no")
    assert by_row[7]["finish_reason"] == "length"
    for index in (2, 3, 4, 5, 7):
        assert by_row[index]["parsed"] is by_row[index]["age"] is None


def test_the_report_counts_the_models_that_rows_name(run: Run) -> None:
    rows = [{"prompt": "a", "model": "x"}, {"prompt": "b"}, {"prompt": "c", "model": "x"}]
    assert run(rows).models_named == {"x": 2}


def test_answers_with_a_shape_are_found_again(run: Run, output: Path, schema: Path) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b", "max_tokens": 5}]
    assert computed(run(rows, json_schema=schema, max_tokens=80)) == 2
    before = read_parquet(output)
    assert computed(run(rows, json_schema=schema, max_tokens=80)) == 0
    assert read_parquet(output) == before
    assert computed(run(rows, max_tokens=80)) == 2


def test_jsonl_holds_the_parsed_value_and_finds_it_again(
    tmp_path: Path, tiny_model: Callable[..., Path], schema: Path
) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    for reused in (0, 1):
        summary = batchrun.run(
            path,
            output=tmp_path / "out.jsonl",
            model=str(tiny_model("llama")),
            json_schema=schema,
            max_tokens=80,
            quiet=True,
        )
        assert summary.request_counts.reused == reused
        (line,) = read_jsonl(tmp_path / "out.jsonl")
        message = line["response"]["body"]["choices"][0]["message"]
        assert message["parsed"] == json.loads(message["content"])


def test_every_answer_of_a_run_is_one_of_its_choices(run: Run, output: Path) -> None:
    rows = [{"prompt": f"row {index}"} for index in range(6)]
    assert run(rows, choices="positive, negative", max_tokens=20).exit_status == 0
    assert {row["text"] for row in read_parquet(output)} <= {"positive", "negative"}
    assert run(rows, choices=["a,b"], max_tokens=20).exit_status == 0
    assert {row["text"] for row in read_parquet(output)} == {"a,b"}


def test_labels_come_with_the_probability_of_each_choice(run: Run, output: Path) -> None:
    rows = [{"prompt": f"row {index}"} for index in range(6)]
    rows.append({"prompt": "own", "guided_choice": ["x", "y"]})
    assert run(rows, choices="positive, negative", label=True).exit_status == 0
    labels = read_parquet(output)
    for row in labels:
        probs = json.loads(row["choice_probs"])
        assert sum(probs.values()) == pytest.approx(1)
        assert row["text"] == max(probs, key=probs.__getitem__)
    assert set(json.loads(labels[-1]["choice_probs"])) == {"x", "y"}

    assert computed(run(rows, choices="positive, negative", label=True)) == 0
    assert computed(run(rows, choices="positive, negative", max_tokens=20)) == len(rows)
    written = read_parquet(output)
    assert {row["text"] for row in written[:-1]} <= {"positive", "negative"}
    for row, label in zip(written, labels, strict=True):
        probs = json.loads(row["choice_probs"])
        assert probs == pytest.approx(json.loads(label["choice_probs"]))


def test_labels_as_jsonl_are_found_again(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    for reused in (0, 2):
        summary = batchrun.run(
            path,
            output=tmp_path / "out.jsonl",
            model=str(tiny_model("llama")),
            choices="yes,no",
            label=True,
            quiet=True,
        )
        assert summary.request_counts.reused == reused
    for line in read_jsonl(tmp_path / "out.jsonl"):
        (choice,) = line["response"]["body"]["choices"]
        assert choice["text"] in choice["choice_probs"]


def test_a_choice_that_does_not_fit_the_context_is_the_rows_error(run: Run, output: Path) -> None:
    rows = [{"prompt": [5] * 60}, {"prompt": "a"}]
    assert run(rows, choices="yes,no way of saying", label=True, max_model_len=62).exit_status == 3
    first, second = read_parquet(output)
    assert first["error_code"] == "context_length_exceeded"
    assert second["choice_probs"] is not None


def test_every_answer_of_a_run_matches_its_regex(run: Run, output: Path) -> None:
    run([{"prompt": "a"}, {"prompt": "b"}], regex="[0-9]{2}")
    assert all(row["text"].isdecimal() for row in read_parquet(output))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"regex": "[0-9"}, "--regex cannot be followed"),
        ({"choices": "a,,b"}, "--choices must be"),
        ({"choices": "a", "regex": "a"}, "keep one"),
        ({"explode": True}, "--explode needs --json-schema"),
        ({"explode": True, "regex": "a"}, "--explode needs --json-schema"),
        ({"label": True}, "--label needs --choices"),
    ],
)
def test_shapes_that_cannot_be_are_told_before_anything_is_read(
    run: Run, output: Path, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run([{"prompt": "a"}], **flags)
    assert not output.exists()


def test_columns_need_parquet(tmp_path: Path, schema: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "a"}])
    with pytest.raises(UsageError, match="only Parquet"):
        batchrun.run(path, output=tmp_path / "out.jsonl", json_schema=schema, explode=True)


def test_a_schema_that_cannot_be_is_told_before_anything_is_read(run: Run, schema: Path) -> None:
    schema.write_text('{"type": "integer", "minimum": 2, "maximum": 1}')
    with pytest.raises(UsageError, match="--json-schema cannot be followed"):
        run([{"prompt": "a"}], json_schema=schema)
