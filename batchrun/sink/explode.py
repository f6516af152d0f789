"""Which columns the fields of JSON answers become, as far as the schema alone tells."""

from __future__ import annotations

from typing import Any, Literal, get_args

from batchrun.errors import UsageError

FieldKind = Literal["string", "integer", "number", "boolean"]
Fields = tuple[tuple[str, str], ...]
KINDS: tuple[FieldKind, ...] = get_args(FieldKind)

_PYTHON: dict[type, FieldKind] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}


def flat_fields(schema: dict[str, Any]) -> tuple[tuple[str, FieldKind], ...]:
    """The properties of an object of plain values, and the type of each; null may stand for any.

    Raises UsageError for a schema of anything else.
    """
    top = _resolved(schema, schema)
    properties = top.get("properties", {})
    if not properties:
        raise UsageError("--explode needs a schema of an object with properties")
    return tuple((name, _kind(name, part, schema)) for name, part in properties.items())


def _kind(name: str, part: Any, schema: dict[str, Any]) -> FieldKind:
    kinds = _kinds(part, schema) - {"null"}
    if kinds == {"integer", "number"}:
        return "number"
    for kind in KINDS:
        if kinds == {kind}:
            return kind
    raise UsageError(
        f"--explode: the field {name!r} is not a plain string, number or boolean; leave --explode"
        " out and take it from the column parsed"
    )


def _kinds(part: Any, schema: dict[str, Any]) -> set[str]:
    """The JSON types that a value may have; "any" for what the schema leaves open."""
    part = _resolved(part, schema)
    values = part["enum"] if "enum" in part else [part["const"]] if "const" in part else None
    if values is not None:
        return {"null" if value is None else _PYTHON.get(type(value), "any") for value in values}
    if "type" in part:
        return {part["type"]} if isinstance(part["type"], str) else set(part["type"])
    branches = part.get("anyOf", part.get("oneOf", []))
    return {"any"} if not branches else set().union(*(_kinds(each, schema) for each in branches))


def _resolved(part: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """What a reference into the schema's own definitions points at."""
    for _ in range(len(schema.get("$defs", ())) + len(schema.get("definitions", ())) + 1):
        if not isinstance(part, dict) or "$ref" not in part:
            break
        keys = str(part["$ref"]).removeprefix("#/").split("/")
        part = schema
        for key in keys:
            part = part.get(key, {}) if isinstance(part, dict) else {}
    return part if isinstance(part, dict) else {}
