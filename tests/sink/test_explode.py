"""Fields of JSON answers as columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchrun.errors import UsageError
from batchrun.sink import Journal, write_output
from batchrun.sink.explode import flat_fields
from tests.sink.builders import completion, failure, make_answer, make_row


def test_plain_values_have_a_type() -> None:
    schema = {
        "$defs": {"Kind": {"enum": ["a", "b", None]}, "Alias": {"$ref": "#/$defs/Kind"}},
        "properties": {
            "name": {"type": "string", "maxLength": 3},
            "age": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "size": {"type": ["integer", "number"]},
            "good": {"const": True},
            "kind": {"$ref": "#/$defs/Alias"},
        },
    }
    assert flat_fields(schema) == (
        ("name", "string"),
        ("age", "integer"),
        ("size", "number"),
        ("good", "boolean"),
        ("kind", "string"),
    )


@pytest.mark.parametrize(
    "field",
    [
        {},
        True,
        {"type": "array"},
        {"type": "object"},
        {"type": ["string", "integer"]},
        {"enum": ["a", 1]},
        {"enum": [[1]]},
        {"type": "null"},
        {"$ref": "#/$defs/loop"},
        {"anyOf": [{"type": "string"}, {"type": "array"}]},
    ],
)
def test_anything_else_cannot_be_a_column(field: Any) -> None:
    schema = {"properties": {"x": field}, "$defs": {"loop": {"$ref": "#/$defs/loop"}}}
    with pytest.raises(UsageError, match="'x' is not a plain"):
        flat_fields(schema)


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "object"}, {"properties": {}}])
def test_a_schema_without_fields_has_no_columns(schema: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="properties"):
        flat_fields(schema)


def test_fields_become_typed_columns_before_the_kept_ones(tmp_path: Path, journal: Journal) -> None:
    answers = [
        {"name": "Bo", "age": 7.0, "score": 3, "text": "x", "good": True},
        {"name": None, "age": 10**30, "score": 10**400, "extra": 1},
        None,
        [1],
    ]
    for index, value in enumerate(answers):
        row = make_row(index, kept={"age": "kept"})
        journal.add_row(completion(row), f"k{index}")
        text = None if value is None else json.dumps(value)
        journal.add_answer(make_answer(f"k{index}", parsed=text))
    journal.add_failure(failure(make_row(9)))
    fields = (
        ("name", "string"),
        ("age", "integer"),
        ("score", "number"),
        ("text", "string"),
        ("good", "boolean"),
    )
    write_output(journal, tmp_path / "out.parquet", "parquet", explode=fields)

    table = pq.read_table(tmp_path / "out.parquet")
    names = ["name", "age", "score", "parsed_text", "good", "input_age"]
    assert table.column_names[-6:] == names
    types = [pa.string(), pa.int64(), pa.float64(), pa.string(), pa.bool_()]
    assert table.schema.types[-6:-1] == types
    rows = [[row[name] for name in names[:-1]] for row in table.to_pylist()]
    nothing = [None] * 5
    assert rows == [["Bo", 7, 3.0, "x", True], nothing, nothing, nothing, nothing]
