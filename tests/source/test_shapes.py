"""What rows and flags say about the shape of an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchrun.errors import RowError, UsageError
from batchrun.records import Row, Sampling, Shape
from batchrun.source.cells import parse_structured, parse_typed
from batchrun.source.forms import read_request
from batchrun.source.shapes import flag_shape

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "x"}}}
RUNS = Shape("regex", "[0-9]+", "--regex")


def shape_of(default: Shape | None = None, **fields: Any) -> Shape | None:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return read_request(Row(0, "in.jsonl", 1), {"body": body}, Sampling(), shape=default).shape


@pytest.mark.parametrize(
    ("fields", "kind", "source", "param"),
    [
        ({"guided_json": SCHEMA}, "json", SCHEMA, "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, "json", SCHEMA, "guided_json"),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA, "structured_outputs.json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "json",
            SCHEMA,
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_object"}},
            "json",
            {"type": "object"},
            "response_format",
        ),
        (
            {"structured_outputs": {"json_object": True}},
            "json",
            {"type": "object"},
            "structured_outputs.json",
        ),
        ({"guided_choice": ["a", "b,c"]}, "choice", ["a", "b,c"], "guided_choice"),
    ],
)
def test_schemas_and_choices_are_kept_in_their_order(
    fields: dict[str, Any], kind: str, source: Any, param: str
) -> None:
    shape = shape_of(**fields)
    assert shape is not None
    assert (shape.kind, json.loads(shape.source)) == (kind, source)
    assert list(json.loads(shape.source)) == list(source)
    assert shape.param == f"body.{param}"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"guided_regex": "x"}, "regex"),
        ({"structured_outputs": {"regex": "x"}}, "regex"),
        ({"guided_grammar": "x"}, "lark"),
        ({"structured_outputs": {"grammar": "x"}}, "lark"),
    ],
)
def test_expressions_are_kept_as_they_are(fields: dict[str, Any], kind: str) -> None:
    shape = shape_of(**fields)
    assert shape is not None
    assert (shape.kind, shape.source) == (kind, "x")


def test_a_row_that_names_no_shape_has_the_runs() -> None:
    assert shape_of(RUNS) == RUNS


def test_a_rows_own_shape_wins_and_so_does_plain_text() -> None:
    assert shape_of(RUNS, guided_choice=["a"]) == Shape("choice", '["a"]')
    assert shape_of(RUNS, response_format={"type": "text"}) is None


def test_white_space_of_a_schema_is_the_rows() -> None:
    spaced = shape_of(guided_json=SCHEMA, guided_whitespace_pattern=" ?")
    assert spaced is not None
    assert json.loads(spaced.source)["x-guidance"]["whitespace_pattern"] == " ?"
    assert spaced != shape_of(guided_json=SCHEMA)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": [1]}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a", "a"]}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs"),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
    ],
)
def test_what_is_no_shape_is_the_rows_error(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RowError) as caught:
        shape_of(**fields)
    assert caught.value.param == f"body.{param}"


def test_tables_hold_shapes_as_json_text() -> None:
    columns = {"prompt": "p", "guided_choice": '["a", "b"]', "guided_regex": "[0-9]"}
    assert parse_structured(columns)["guided_choice"] == ["a", "b"]
    assert parse_typed(columns)["guided_choice"] == ["a", "b"]
    assert parse_typed(columns)["guided_regex"] == "[0-9]"


def test_flags_give_a_shape(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    assert flag_shape((), path, None) == Shape("json", json.dumps(SCHEMA))
    assert flag_shape(["a", "b"], None, None) == Shape("choice", '["a", "b"]')
    assert flag_shape((), None, "[0-9]+") == RUNS
    assert flag_shape((), None, None) is None


def test_flags_that_give_none_are_usage_errors(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    with pytest.raises(UsageError, match="cannot be read"):
        flag_shape((), path, None)
    path.write_text("[1]")
    with pytest.raises(UsageError, match="--json-schema must be an object"):
        flag_shape((), path, None)
    with pytest.raises(UsageError, match="--choices and --regex"):
        flag_shape(["a"], None, "a")
    with pytest.raises(UsageError, match="none twice"):
        flag_shape(["a", "a"], None, None)
