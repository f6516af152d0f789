"""OpenAI chat messages in the shapes that the templates of models read.

Knows nothing of any template or tokenizer.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from batchrun.errors import RowError
from batchrun.source.parts import TEXT_PARTS

Message = dict[str, Any]

# No template knows what OpenAI's newer name for the same role means.
_ROLES = {"developer": "system"}


def plain_messages(messages: list[Message], *, parse_arguments: bool = True) -> list[Message]:
    """New messages with string content, in which "developer" is "system".

    Takes messages as the source checked them. Text parts are joined. The arguments of earlier tool
    calls that are a JSON object in a string become that object if `parse_arguments`, as most
    templates expect; anything else in their place stays as it is.
    Raises RowError for parts that are not text.
    """
    return [
        _plain_message(
            message, _text(message["content"], f"messages[{index}].content"), parse_arguments
        )
        for index, message in enumerate(messages)
    ]


def parted_messages(messages: list[Message], *, parse_arguments: bool = True) -> list[Message]:
    """The same for the templates of vision models: contents with images or videos in them are lists
    of {"type": "image"}, {"type": "video"} and {"type": "text", "text": ...}, no two texts in a
    row."""
    return [
        _plain_message(message, _parted(message["content"]), parse_arguments)
        for message in messages
    ]


def _plain_message(
    message: Message, content: str | list[Message], parse_arguments: bool
) -> Message:
    plain = {
        **message,
        "role": _ROLES.get(message["role"], message["role"]),
        "content": content,
    }
    # Templates take an empty list of calls for a call.
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = [_parsed_call(c) for c in calls] if parse_arguments else calls
    return plain


def _text(content: str | list[Message], where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _parted(content: str | list[Message]) -> str | list[Message]:
    if isinstance(content, str) or all(part["type"] in TEXT_PARTS for part in content):
        return _text(content, "")
    parts: list[Message] = []
    for is_text, group in groupby(content, lambda part: part["type"] in TEXT_PARTS):
        alike = list(group)
        parts += [{"type": "text", "text": _text(alike, "")}] if is_text else alike
    return parts


def _part_text(part: Message, where: str) -> str:
    if part["type"] not in TEXT_PARTS:
        message = f"{where} is of type {part['type']!r}; this model takes parts of type 'text' only"
        raise RowError("unsupported_content", message, param=where)
    return str(part["text"])


def _parsed_call(call: Message) -> Message:
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    arguments = _parsed_object(function.get("arguments"))
    if arguments is None:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed_object(text: Any) -> dict[str, Any] | None:
    if not isinstance(text, str):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
