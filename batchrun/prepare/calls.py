"""Tools that must be called -> the shape of such an answer, in the model's own form of a call."""

from __future__ import annotations

import json
from typing import Any

from batchrun.errors import RowError
from batchrun.prepare.grammars import JSON_STYLE
from batchrun.records import Dialect, Request, Shape

# How mlx-lm's parsers of these names want a call to be written; others do not take plain JSON.
_FORMS = {"json_tools": '{start} "\\n" call "\\n" {end}'}


def call_shape(request: Request, dialect: Dialect) -> Shape | None:
    """None where calls are left to the model. Raises RowError for a form of calls in which they
    cannot be demanded."""
    choice = request.tool_choice
    if not request.tools or choice == "auto":
        return None
    form = _FORMS.get(dialect.parser or "")
    if form is None:
        raise RowError(
            "unsupported_parameter",
            f"tool_choice {choice!r} is not supported with this model's form of tool calls"
            f" ({dialect.parser or 'none that is known'}); use auto",
            param="tool_choice",
        )
    tools = [tool["function"] for tool in request.tools]
    named = [tool for tool in tools if choice in ("required", tool.get("name"))]
    schema = json.dumps({"anyOf": [_schema(tool) for tool in named], "x-guidance": JSON_STYLE})
    start, end = _marks(dialect)
    block = form.format(start=start, end=end)
    more = '("\\n" block)*' if request.parallel_tool_calls and choice == "required" else ""
    grammar = f"start: block {more}\nblock: {block}\ncall: %json {schema}"
    return Shape("lark", grammar, "tool_choice")


def _marks(dialect: Dialect) -> tuple[str, str]:
    """What opens and closes a call, in Lark: as tokens where they are such, since llguidance does
    not take the text of a special token for the token."""
    if dialect.call_tokens is None:
        return json.dumps(dialect.call_start), json.dumps(dialect.call_end)
    start, end = dialect.call_tokens
    return f"<[{start}]>", f"<[{end}]>"


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool["name"]},
            "arguments": tool.get("parameters") or {"type": "object", "properties": {}},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
