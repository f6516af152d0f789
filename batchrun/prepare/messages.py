"""OpenAI chat messages in the shape that the templates of text models read.

Knows nothing of any template or tokenizer.
"""

from __future__ import annotations

import json
from typing import Any

from batchrun.errors import RowError

Message = dict[str, Any]

_TEXT_PARTS = ("text", "input_text", "output_text")
# No template knows what OpenAI's newer name for the same role means.
_ROLES = {"developer": "system"}


def plain_messages(messages: list[Message], *, parse_arguments: bool = True) -> list[Message]:
    """New messages with string content; null keys go, and "developer" becomes "system".

    Text parts are joined; null or missing content becomes "". The arguments of earlier tool
    calls that are a JSON object in a string become that object if `parse_arguments`, as most
    templates expect; anything else in their place stays as it is.
    Raises RowError for content that is not text, for a message without a role, and for no messages.
    """
    if not messages:
        raise RowError("empty_prompt", "messages is empty; give at least one", param="messages")
    return [
        _plain_message(message, f"messages[{index}]", parse_arguments)
        for index, message in enumerate(messages)
    ]


def _plain_message(message: Message, where: str, parse_arguments: bool) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise RowError("invalid_request", f"{where} has no role", param=f"{where}.role")
    plain: Message = {
        "role": _ROLES.get(role, role),
        "content": _text(message.get("content"), f"{where}.content"),
    }
    for key, value in message.items():
        # Templates ask whether a key is there, and take an empty list of calls for a call.
        if key not in plain and value is not None and value != []:
            plain[key] = value
    if parse_arguments and isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [_parsed_call(call) for call in plain["tool_calls"]]
    return plain


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))
    raise RowError("invalid_request", f"{where} is neither text nor a list of parts", param=where)


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _TEXT_PARTS:
        message = f"{where} is of type {kind!r}; this model takes parts of type 'text' only"
        raise RowError("unsupported_content", message, param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise RowError("invalid_request", f"{where} has no text", param=f"{where}.text")
    return text


def _parsed_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
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
