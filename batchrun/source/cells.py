"""Table cells that hold JSON text, as request fields need them."""

from __future__ import annotations

from typing import Any

from batchrun.errors import RowError
from batchrun.source.fields import shown
from batchrun.source.forms import KNOWN_FIELDS
from batchrun.source.text import parse_json

# In any table these are text only because the table had no better type.
_STRUCTURED = frozenset(
    {
        "body",
        "params",
        "messages",
        "tools",
        "chat_template_kwargs",
        "logit_bias",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_choice",
        "stop_token_ids",
    }
)
# A delimited file has only text; these fields are text by themselves.
_TEXT = frozenset(
    {
        *("prompt", "model", "stop", "user", "tool_choice", "suffix"),
        *("context", "continuation"),
        *("guided_regex", "guided_grammar", "guided_whitespace_pattern"),
    }
)
_TYPED = (KNOWN_FIELDS - _TEXT) | _STRUCTURED


def parse_structured(columns: dict[str, Any]) -> dict[str, Any]:
    """A Parquet row whose structured fields may be JSON text. Raises RowError naming the column."""
    return {name: _parse(name, columns[name], _STRUCTURED) for name in columns}


def parse_typed(columns: dict[str, Any]) -> dict[str, Any]:
    """A delimited row whose fields that are not text are JSON text; empty cells are missing.

    Raises RowError naming the column.
    """
    return {name: _parse(name, text, _TYPED) for name, text in columns.items() if text != ""}


def _parse(name: str, value: Any, fields: frozenset[str]) -> Any:
    if name not in fields or not isinstance(value, str | bytes):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise RowError(
            "invalid_request", f"{name} is not valid JSON: {error}: {shown(value)}", param=name
        ) from error
