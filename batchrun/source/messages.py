"""The messages and tools of a chat request, checked.

Nothing is rendered, and the media that parts name are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchrun.source.attach import with_media
from batchrun.source.fields import Body, shown
from batchrun.source.parts import MEDIA_PARTS, TEXT_PARTS, is_placeholder, media_source

ROLES = ("system", "developer", "user", "assistant", "tool")


def read_messages(body: Body, media: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """The body's messages, `system` first, with `media`, parts that the row has apart from them.

    Raises RowError naming the message at fault.

    An assistant's missing content beside tool calls becomes "": chat templates differ in what
    they make of null and of an absent key, while all print an empty string as nothing.
    """
    messages = body.fields["messages"]
    if not isinstance(messages, list):
        raise body.error("messages", f"must be a list, not {shown(messages)}")
    if not messages:
        raise body.error("messages", "is empty; give at least one message")
    read = [_message(body, f"messages[{i}]", item, bool(media)) for i, item in enumerate(messages)]
    if media:
        read = _with_media(body, read, media)
    if body.system is None:
        return read
    _check_content(body, "system", body.system, may_be_places=False)
    return [{"role": "system", "content": body.system}, *read]


def read_tools(body: Body) -> list[dict[str, Any]] | None:
    """The body's tools, None where there are none or `tool_choice` is "none"."""
    tools = body.fields.get("tools", [])
    if not _is_list_of_objects(tools):
        raise body.error("tools", f"must be a list of objects, not {shown(tools)}")
    for i, tool in enumerate(tools):
        if tool.get("type", "function") != "function":
            raise body.error(
                f"tools[{i}].type", "is supported only as function", code="unsupported_parameter"
            )
    return tools if tools and body.fields.get("tool_choice") != "none" else None


def read_tool_choice(body: Body, tools: list[dict[str, Any]] | None) -> str:
    """auto, required, or the name of one of `tools`. Raises RowError."""
    choice = body.fields.get("tool_choice", "auto")
    if choice in ("auto", "none"):
        return "auto"
    names = [_name(body, i, tool) for i, tool in enumerate(tools or ())]
    if not names:
        raise body.error("tool_choice", "needs tools to choose from")
    if choice == "required":
        return "required"
    name = choice["function"].get("name") if _is_function(choice) else None
    if name not in names:
        problem = f"must be auto, none, required or one of the tools, not {shown(choice)}"
        raise body.error("tool_choice", problem)
    return str(name)


def _is_function(choice: Any) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("function"), dict)


def _name(body: Body, index: int, tool: dict[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name in ("auto", "required"):
        problem = f"must be the tool's name, not {shown(name)}"
        raise body.error(f"tools[{index}].function.name", problem)
    return name


def _with_media(
    body: Body, messages: list[dict[str, Any]], media: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    try:
        return with_media(messages, media)
    except ValueError as error:
        raise body.error("messages", str(error)) from None


def _message(body: Body, name: str, message: Any, has_media: bool) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise body.error(name, f"must be an object, not {shown(message)}")
    role = message.get("role")
    if role not in ROLES:
        problem = f"must be one of {', '.join(ROLES)}, not {shown(role)}"
        raise body.error(f"{name}.role", problem)
    _check_tool_calls(body, name, message)
    if message.get("content", []) == [] and message.get("tool_calls"):
        return message | {"content": ""}
    _check_content(body, f"{name}.content", message.get("content"), may_be_places=has_media)
    return message


def _check_tool_calls(body: Body, name: str, message: dict[str, Any]) -> None:
    calls = message.get("tool_calls", [])
    if not _is_list_of_objects(calls):
        raise body.error(f"{name}.tool_calls", "must be a list of objects")


def _check_content(body: Body, name: str, content: Any, *, may_be_places: bool) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise body.error(name, f"must be a string or a list of parts, not {shown(content)}")
    for i, part in enumerate(content):
        if not (may_be_places and is_placeholder(part)):
            _check_part(body, f"{name}[{i}]", part)


def _check_part(body: Body, name: str, part: Any) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise body.error(name, f"must be an object with a type, not {shown(part)}")
    if part["type"] in TEXT_PARTS:
        if not isinstance(part.get("text"), str):
            raise body.error(f"{name}.text", "must be a string")
    elif part["type"] in MEDIA_PARTS:
        _check_media(body, name, part)
    else:
        raise body.error(
            f"{name}.type",
            f"{shown(part['type'])} is not supported; use text, image_url or video_url",
            code="unsupported_content",
        )


def _check_media(body: Body, name: str, part: dict[str, Any]) -> None:
    try:
        media_source(part)
    except ValueError as error:
        raise body.error(name, str(error)) from None


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
