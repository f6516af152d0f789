"""What a request's body says about the shape of its answer -> Shape.

The fields are OpenAI's `response_format` and vLLM's `structured_outputs` and `guided_*`. Whether a
schema or grammar can be followed is found out later, where there is a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from batchrun.errors import RowError, UsageError
from batchrun.records import Shape, ShapeKind
from batchrun.source.fields import Body, shown
from batchrun.source.text import parse_json

_GUIDED: dict[str, ShapeKind] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "lark",
}
_STRUCTURED: dict[str, ShapeKind] = {
    "json": "json",
    "regex": "regex",
    "choice": "choice",
    "grammar": "lark",
}
_WHITESPACE = "guided_whitespace_pattern"
SHAPE_FIELDS = frozenset({*_GUIDED, "response_format", "structured_outputs", _WHITESPACE})

# Where a schema says how its JSON is written; read by llguidance, and by no validator.
_STYLE = "x-guidance"


def read_shape(body: Body, default: Shape | None) -> Shape | None:
    """The shape that the body names, `default` where it names none, None for plain text.

    Raises RowError naming the field at fault.
    """
    named = [name for name in sorted(SHAPE_FIELDS - {_WHITESPACE}) if name in body.fields]
    if len(named) > 1:
        raise body.error(named[1], f"and {named[0]} both give the answer's shape; keep one of them")
    if not named:
        if _WHITESPACE in body.fields:
            raise body.error(_WHITESPACE, "needs guided_json beside it")
        return default
    name = named[0]
    if name == "response_format":
        return _response_format(body)
    if name == "structured_outputs":
        return _structured_outputs(body)
    shape = _shape(body, name, _GUIDED[name], body.fields[name])
    return _with_whitespace(body, _WHITESPACE, shape, body.fields.get(_WHITESPACE))


def choice_shape(choices: list[str], param: str) -> Shape:
    return Shape("choice", json.dumps(choices), param)


def schema_shape(schema: dict[str, Any], param: str) -> Shape:
    return Shape("json", json.dumps(schema), param)


def _response_format(body: Body) -> Shape | None:
    name = "response_format"
    value = _object(body, name, body.fields[name])
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return schema_shape({"type": "object"}, body.prefix + name)
    if kind != "json_schema":
        problem = f"must be text, json_object or json_schema, not {shown(kind)}"
        raise body.error(f"{name}.type", problem)
    inner = _object(body, f"{name}.json_schema", value.get("json_schema"))
    return _shape(body, f"{name}.json_schema.schema", "json", inner.get("schema"))


def _structured_outputs(body: Body) -> Shape:
    name = "structured_outputs"
    value = dict(_object(body, name, body.fields[name]))
    whitespace = value.pop("whitespace_pattern", None)
    for switch in ("disable_any_whitespace", "disable_fallback", "disable_additional_properties"):
        if value.pop(switch, False) is not False:
            raise body.error(f"{name}.{switch}", "is not supported; remove it")
    if value.pop("json_object", False) is True:
        value.setdefault("json", {"type": "object"})
    kinds = [key for key in value if key in _STRUCTURED]
    if len(value) != 1 or not kinds:
        known = ", ".join(_STRUCTURED)
        raise body.error(name, f"must hold one of {known} or json_object, not {shown(list(value))}")
    where = f"{name}.{kinds[0]}"
    shape = _shape(body, where, _STRUCTURED[kinds[0]], value[kinds[0]])
    return _with_whitespace(body, f"{name}.whitespace_pattern", shape, whitespace)


def _shape(body: Body, name: str, kind: ShapeKind, value: Any) -> Shape:
    if kind == "json":
        return schema_shape(_schema(body, name, value), body.prefix + name)
    if kind == "choice":
        return choice_shape(_choices(body, name, value), body.prefix + name)
    if not isinstance(value, str) or not value:
        raise body.error(name, f"must be a string that is not empty, not {shown(value)}")
    return Shape(kind, value, body.prefix + name)


def _schema(body: Body, name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise body.error(name, f"is not valid JSON: {error}") from None
    return _object(body, name, value)


def _choices(body: Body, name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise body.error(name, f"must be a list of strings, none empty, not {shown(value)}")
    if not value or len(set(value)) < len(value):
        raise body.error(name, "must hold at least one choice, and none twice")
    return value


def _with_whitespace(body: Body, name: str, shape: Shape, pattern: Any) -> Shape:
    if pattern is None:
        return shape
    if shape.kind != "json" or not isinstance(pattern, str):
        raise body.error(name, "must be a regular expression, beside a JSON schema")
    style = {"whitespace_flexible": True, "whitespace_pattern": pattern}
    style |= {"item_separator": ",", "key_separator": ":"}
    return schema_shape(json.loads(shape.source) | {_STYLE: style}, shape.param)


def _object(body: Body, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise body.error(name, f"must be an object, not {shown(value)}")
    return cast(dict[str, Any], value)


def flag_shape(
    choices: Sequence[str], json_schema: str | Path | None, regex: str | None
) -> Shape | None:
    """The shape that the command's flags give to answers. Raises UsageError."""
    given = {
        "--choices": list(choices) or None,
        "--json-schema": None if json_schema is None else _read(Path(json_schema)),
        "--regex": regex,
    }
    named = {flag: value for flag, value in given.items() if value is not None}
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} both give the answer's shape; keep one of them")
    kinds: dict[str, ShapeKind] = {"--choices": "choice", "--json-schema": "json"}
    try:
        for flag, value in named.items():
            return _shape(Body({}), flag, kinds.get(flag, "regex"), value)
    except RowError as error:
        raise UsageError(error.message) from None
    return None


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--json-schema {path} cannot be read ({error})") from error
