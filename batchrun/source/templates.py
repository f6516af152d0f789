"""Templates over a data-set row's columns, and the requests they make.

Templates are Jinja2, sandboxed; a name that the row lacks is an error, not an empty string.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchrun.errors import RowError, UsageError
from batchrun.records import Request
from batchrun.source.fields import without_nulls

_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
# The whole row, for columns whose names are not words: {{ row["review text"] }}.
_ROW = "row"
# Names that every template has; a column of such a name takes its place.
BUILT_IN = frozenset(_ENVIRONMENT.globals)


class Template:
    """A compiled template. `flag` is the option it came from, for messages."""

    def __init__(self, source: str, flag: str):
        self.flag = flag
        try:
            self._template = _ENVIRONMENT.from_string(source)
            self._names = meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
        except TemplateSyntaxError as error:
            raise UsageError(f"{flag}: {error.message} (line {error.lineno})") from error

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns that it reads, but for those with a built-in's name; None for any."""
        return None if _ROW in self._names else frozenset(self._names)

    def render(self, columns: dict[str, Any]) -> str:
        """The text for one row; columns that are null count as missing.

        Raises RowError where a column is missing or the template fails on this row's values.
        """
        columns = without_nulls(columns)
        try:
            return self._template.render({_ROW: columns} | columns)
        except UndefinedError as error:
            raise self._error(
                "missing_column", f"{error.message}; the row has {', '.join(columns) or 'nothing'}"
            ) from error
        # A filter raises what it likes on a value that it was not written for.
        except Exception as error:
            raise self._error("template_error", str(error)) from error

    def _error(self, code: str, problem: str) -> RowError:
        return RowError(code, f"{self.flag}: {problem}", param=self.flag.lstrip("-"))


def reads_nothing(columns: dict[str, Any], *templates: Template | None) -> bool:
    """Whether every column that the templates name holds text without anything in it."""
    named = [template.columns for template in templates if template is not None]
    if None in named:
        return False
    values = [columns[name] for names in named for name in names or () if name in columns]
    return bool(values) and all(isinstance(value, str) and not value.strip() for value in values)


def chat_messages(
    columns: dict[str, Any], prompt: Template, system: Template | None
) -> list[dict[str, Any]]:
    """A user message from `prompt`, after a system message where `system` makes any text."""
    text = prompt.render(columns)
    if not text.strip():
        raise RowError("invalid_request", f"{prompt.flag}: the text is empty", param="prompt")
    return [*_system_messages(columns, system), {"role": "user", "content": text}]


def with_system(request: Request, columns: dict[str, Any], system: Template) -> Request:
    """The request with a system message put first; one that it has already is kept instead.

    Raises RowError for a completion, which has no place for one.
    """
    if request.messages is None:
        raise RowError(
            "invalid_request",
            f"{system.flag} needs a chat row, and this one is a completion; "
            "use --prompt '{{ prompt }}' to make it one",
            param="prompt",
        )
    if any(message["role"] in ("system", "developer") for message in request.messages):
        return request
    return replace(request, messages=_system_messages(columns, system) + request.messages)


def _system_messages(columns: dict[str, Any], system: Template | None) -> list[dict[str, Any]]:
    text = system.render(columns) if system else ""
    return [{"role": "system", "content": text}] if text.strip() else []
