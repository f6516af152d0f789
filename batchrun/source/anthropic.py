"""Anthropic's `params` -> a body in OpenAI's names."""

from __future__ import annotations

from typing import Any

from batchrun.source.fields import Body, shown

_ALIASES = (("stop", "stop_sequences"),)
# `cache_control` asks for what is done anyway; citations are of the API's own making.
_TEXT_BLOCK = {"type", "text", "cache_control", "citations"}
_IMAGE_BLOCK = {"type", "source", "cache_control"}
_IMAGE_SOURCES = (("base64", "data"), ("url", "url"))  # type, and the field that holds it
_TOOL = {"type", "name", "description", "input_schema", "cache_control"}


def anthropic_body(params: dict[str, Any]) -> Body:
    """The same request as a body whose errors name the fields of `params`.

    Raises RowError for content other than text and images, and for tools that are not functions.
    """
    body = Body(params, "params.", _ALIASES)
    fields = dict(params)
    system = _content(body, "system", fields.pop("system", None)) or None
    if "messages" in fields:
        fields["messages"] = _messages(body)
    if "stop_sequences" in fields:
        fields["stop"] = fields.pop("stop_sequences")
    if "tools" in fields:
        fields["tools"] = _tools(body)
    if "tool_choice" in fields:
        fields |= _tool_choice(body)
    return Body(fields, "params.", _ALIASES, system)


def _messages(body: Body) -> list[Any]:
    messages = body.fields["messages"]
    if not isinstance(messages, list):
        raise body.error("messages", f"must be a list, not {shown(messages)}")
    return [_message(body, f"messages[{i}]", item) for i, item in enumerate(messages)]


def _message(body: Body, name: str, message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return message | {"content": _content(body, f"{name}.content", message.get("content"))}


def _content(body: Body, name: str, content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [_block(body, f"{name}[{i}]", block) for i, block in enumerate(content)]


def _block(body: Body, name: str, block: Any) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise body.error(name, f"must be an object, not {shown(block)}")
    if block.get("type") == "image" and not block.keys() - _IMAGE_BLOCK:
        return _image(body, f"{name}.source", block.get("source"))
    if block.get("type") == "text" and not block.keys() - _TEXT_BLOCK:
        return {"type": "text", "text": block.get("text")}
    raise body.error(
        name, f"{shown(block)} is not supported; use text or image", code="unsupported_parameter"
    )


def _image(body: Body, name: str, source: Any) -> dict[str, Any]:
    if not isinstance(source, dict):
        raise body.error(name, f"must be an object, not {shown(source)}")
    kind = source.get("type")
    field = next((field for name, field in _IMAGE_SOURCES if name == kind), None)
    if field is None:
        raise body.error(
            f"{name}.type",
            f"{shown(kind)} is not supported; use base64 or url",
            code="unsupported_parameter",
        )
    value = source.get(field)
    if not isinstance(value, str) or not value:
        raise body.error(f"{name}.{field}", f"must be a string, not empty, not {shown(value)}")
    if kind == "base64":
        value = f"data:{source.get('media_type', '')};base64,{value}"
    return {"type": "image_url", "image_url": {"url": value}}


def _tools(body: Body) -> list[Any]:
    tools = body.fields["tools"]
    if not isinstance(tools, list):
        raise body.error("tools", f"must be a list, not {shown(tools)}")
    return [_tool(body, f"tools[{i}]", tool) for i, tool in enumerate(tools)]


def _tool(body: Body, name: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise body.error(name, f"must be an object with a name, not {shown(tool)}")
    if tool.get("type", "custom") != "custom" or tool.keys() - _TOOL:
        raise body.error(
            name, f"{shown(tool)} is not supported as a tool", code="unsupported_parameter"
        )
    function = {key: tool[key] for key in ("name", "description") if key in tool}
    return {
        "type": "function",
        "function": function | {"parameters": tool.get("input_schema", {})},
    }


def _tool_choice(body: Body) -> dict[str, Any]:
    choice = body.fields["tool_choice"]
    if not isinstance(choice, dict):
        raise body.error("tool_choice", f"must be an object, not {shown(choice)}")
    kind = choice.get("type")
    fields: dict[str, Any] = {"tool_choice": choice}
    if kind in ("auto", "none", "any"):
        fields["tool_choice"] = "required" if kind == "any" else kind
    elif kind == "tool":
        named = {"name": choice.get("name")}
        fields["tool_choice"] = {"type": "function", "function": named}
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False
    return fields
