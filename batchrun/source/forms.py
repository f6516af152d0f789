"""One row's columns -> Request, for rows that are requests themselves.

The forms: an OpenAI batch line (`method`, `url`, `body`) or its `body` alone, Anthropic's `params`,
and bare rows with `messages` or `prompt` among their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from batchrun.errors import RowError
from batchrun.records import Request, Row, Sampling, Shape
from batchrun.source.anthropic import anthropic_body
from batchrun.source.fields import (
    HARMLESS_FIELDS,
    REQUEST_FIELDS,
    UNSUPPORTED_FIELDS,
    Body,
    check_fields,
    shown,
    without_nulls,
)
from batchrun.source.messages import read_messages, read_tool_choice, read_tools
from batchrun.source.sampling import SAMPLING_FIELDS, read_sampling
from batchrun.source.scores import SCORE_FIELDS, read_scores, split_continuation
from batchrun.source.shapes import SHAPE_FIELDS, read_shape

KNOWN_FIELDS = (
    REQUEST_FIELDS
    | HARMLESS_FIELDS
    | UNSUPPORTED_FIELDS.keys()
    | SAMPLING_FIELDS
    | SHAPE_FIELDS
    | SCORE_FIELDS
    | {"stream"}
)

_CONTINUED = {"context", "continuation"}
_CHAT_URL = "/v1/chat/completions"
_COMPLETION_URL = "/v1/completions"
# A column of a bare row that is so much like a sampling field is a slip of the pen, not data.
_SLIP = 0.9
_CHAT_ONLY = ("tools", "tool_choice", "chat_template_kwargs")


def read_custom_id(columns: dict[str, Any]) -> str | None:
    """The row's `custom_id`, a number as its string."""
    value = columns.get("custom_id")
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise RowError(
        "invalid_request",
        f"custom_id must be a string or a number, not {shown(value)}",
        param="custom_id",
    )


def read_request(
    row: Row,
    columns: dict[str, Any],
    defaults: Sampling,
    media: Sequence[dict[str, Any]] = (),
    shape: Shape | None = None,
) -> Request:
    """The request that the row is; sampling fields that it leaves out are those of `defaults`, and
    `shape` is its answer's where it names none itself. The parts `media` belong to its messages.

    Unknown columns of a bare row are data and ignored, unless they look like a misspelled sampling
    field; unknown fields of a body are faults.
    Raises RowError, with the dotted path of the field at fault.
    """
    columns = {name: value for name, value in columns.items() if value is not None}
    body, continuation = split_continuation(_body(columns))
    check_fields(body, KNOWN_FIELDS)
    is_chat = _is_chat(body, columns.get("url") if "body" in columns else None)
    if media and not is_chat:
        raise body.error(
            "prompt",
            f"is a completion's, which has no place for the row's {media[0]['type']};"
            " use --prompt '{{ prompt }}'",
        )
    sampling = read_sampling(body, defaults, is_chat=is_chat)
    if continuation is not None:
        # Nothing is written, whatever the row says of how.
        prompt, nothing = str(body.fields["prompt"]), Sampling(max_tokens=0)
        return Request(row, nothing, prompt=prompt, continuation=continuation)
    scores = read_scores(body, sampling, is_chat=is_chat)
    tools = read_tools(body) if is_chat else None
    return Request(
        row=row,
        sampling=sampling,
        messages=read_messages(body, media) if is_chat else None,
        prompt=None if is_chat else _prompt(body),
        tools=tools,
        tool_choice=read_tool_choice(body, tools),
        parallel_tool_calls=_parallel(body),
        model=_model(body),
        template_kwargs=_template_kwargs(body),
        shape=read_shape(body, shape),
        prompt_logprobs=scores.prompt_logprobs,
        echo=scores.echo,
    )


def _body(columns: dict[str, Any]) -> Body:
    forms = [name for name in ("body", "params", "messages", "prompt") if name in columns]
    if len(forms) > 1:
        raise RowError(
            "invalid_request",
            f"the row has both {forms[0]} and {forms[1]}; keep one, or use --prompt",
            param=forms[1],
        )
    if not forms and "continuation" not in columns:
        raise _no_request(columns)
    if forms == ["body"]:
        _check_method(columns)
        return Body(without_nulls(_object(columns, "body")), "body.")
    if forms == ["params"]:
        return anthropic_body(without_nulls(_object(columns, "params")))
    known = KNOWN_FIELDS if forms else KNOWN_FIELDS | _CONTINUED
    fields = {name: columns[name] for name in columns if name in known or _is_slip(name)}
    return Body(without_nulls(fields))


def _is_slip(name: str) -> bool:
    return bool(get_close_matches(name, SAMPLING_FIELDS, n=1, cutoff=_SLIP))


def _no_request(columns: dict[str, Any]) -> RowError:
    if "url" in columns or "method" in columns:
        return RowError("missing_required_parameter", "body is missing", param="body")
    names = ", ".join(columns) or "none"
    return RowError(
        "missing_required_parameter",
        "the row has neither messages, prompt, body nor context and continuation; make one of its "
        f"columns ({names}) with --prompt",
        param="messages",
    )


def _object(columns: dict[str, Any], name: str) -> dict[str, Any]:
    value = columns[name]
    if not isinstance(value, dict):
        raise RowError(
            "invalid_request", f"{name} must be an object, not {shown(value)}", param=name
        )
    return value


def _check_method(columns: dict[str, Any]) -> None:
    method = columns.get("method", "POST")
    if method != "POST":
        raise RowError(
            "invalid_request", f"method must be POST, not {shown(method)}", param="method"
        )


def _is_chat(body: Body, url: Any) -> bool:
    """By the url where there is one, else by which of messages and prompt is there."""
    if url not in (None, _CHAT_URL, _COMPLETION_URL):
        raise RowError(
            "invalid_url",
            f"url {shown(url)} is not served; use {_CHAT_URL} or {_COMPLETION_URL}",
            param="url",
        )
    is_chat = url == _CHAT_URL or (url is None and "prompt" not in body.fields)
    wanted, other = ("messages", "prompt") if is_chat else ("prompt", "messages")
    if wanted not in body.fields:
        raise body.error(wanted, "is missing", code="missing_required_parameter")
    if other in body.fields:
        raise body.error(other, f"has no place beside {wanted}; remove one of them")
    if not is_chat:
        _refuse_chat_fields(body)
    return is_chat


def _refuse_chat_fields(body: Body) -> None:
    for name in _CHAT_ONLY:
        if body.fields.get(name):
            raise body.error(name, "needs a chat request: give messages, not prompt")


def _prompt(body: Body) -> str | list[int]:
    prompt = body.fields["prompt"]
    if isinstance(prompt, list) and any(isinstance(item, str | list) for item in prompt):
        raise body.error("prompt", "holds several prompts; give each its own row")
    if not isinstance(prompt, str) and not _is_token_ids(prompt):
        raise body.error("prompt", f"must be a string or token ids, not {shown(prompt)}")
    if not prompt:
        raise body.error("prompt", "is empty")
    return prompt


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _model(body: Body) -> str | None:
    name = body.fields.get("model")
    return name if isinstance(name, str) else None


def _parallel(body: Body) -> bool:
    value = body.fields.get("parallel_tool_calls", True)
    if not isinstance(value, bool):
        raise body.error("parallel_tool_calls", f"must be true or false, not {shown(value)}")
    return value


def _template_kwargs(body: Body) -> dict[str, Any]:
    value = body.fields.get("chat_template_kwargs", {})
    if not isinstance(value, dict):
        raise body.error("chat_template_kwargs", f"must be an object, not {shown(value)}")
    return value
