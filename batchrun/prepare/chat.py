"""Chat requests -> token ids, through the model's own chat template.

A template is the model maker's program, run on the row's data: whatever it raises is that row's
error, and what it would silently leave out is one too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from batchrun.errors import RowError
from batchrun.prepare.messages import Message, parted_messages, plain_messages
from batchrun.prepare.processor import Processor
from batchrun.prepare.tokenizer import Tokenizer, row_error
from batchrun.records import Request

# Names that apply_chat_template and its renderer take for themselves: through them a row could
# replace the template, or turn off tokenising.
_RESERVED = {
    *("chat_template", "tokenize", "tokenizer_kwargs", "padding", "truncation", "max_length"),
    *("return_tensors", "return_dict", "return_assistant_tokens_mask", "sanitize_control_tokens"),
    *("messages", "conversation", "conversations", "tools", "self"),
}
_SWITCHES = ("add_generation_prompt", "continue_final_message")
_MAX_SHAPES = 4096


class _Way(NamedTuple):
    """One way through a template: the shape of its messages, what makes of them what is wanted, and
    what makes of them the text that the model sees."""

    shape: Callable[..., list[Message]]
    make: Callable[..., Any]
    show: Callable[..., str]


class ChatTemplate:
    """The chat template of one model, by its tokenizer, and by its processor if it takes images.

    The row's template kwargs reach the template as variables. Two of them are switches, as in
    vLLM: `add_generation_prompt` (default true, the assistant's turn is opened) and
    `continue_final_message` (default false; true lets the model go on in a last assistant
    message). A last assistant message alone changes nothing.
    """

    def __init__(self, tokenizer: Tokenizer, processor: Processor | None = None) -> None:
        self._tokenizer = tokenizer
        self._processor = processor
        # What the template leaves out of conversations of a shape, so that it is tried out once.
        self._left_out: dict[int, str | None] = {}

    def encode(self, request: Request) -> list[int]:
        """Token ids of the request's messages, which are text. Raises RowError."""
        processor = self._processor
        if processor is None:
            return self._tokens(request)
        try:
            return self._tokens(request)
        except RowError as error:
            # Some templates of vision models take nothing but lists of parts.
            try:
                text = self.render(request)
            except RowError:
                raise error from None
        with row_error("media_error", "the model's processor refuses the row", "messages"):
            return processor.process(text, [], []).token_ids

    def render(self, request: Request) -> str:
        """The text of a conversation with images or videos, for a model with a processor. Raises
        RowError."""
        if self._processor is None:
            raise ValueError("the model has no processor")
        render = self._processor.render
        return str(self._through(_Way(parted_messages, render, render), request))

    def _tokens(self, request: Request) -> list[int]:
        if not self._tokenizer.has_chat_template:
            raise RowError(
                "no_chat_template",
                "this model has no chat template; give one with --chat-template,"
                ' or send rows with "prompt" instead of "messages"',
                param="messages",
            )
        apply = self._tokenizer.apply_chat_template
        make, show = partial(apply, tokenize=True), partial(apply, tokenize=False)
        return list(self._through(_Way(plain_messages, make, show), request))

    def _through(self, way: _Way, request: Request) -> Any:
        messages = way.shape(request.messages or [])
        options = _options(request, messages)
        try:
            made = _apply(way.make, messages, options)
        except RowError:
            # Some templates want the arguments of tool calls as the strings that OpenAI sends.
            parsed = messages
            messages = way.shape(request.messages or [], parse_arguments=False)
            if messages == parsed:
                raise
            made = _apply(way.make, messages, options)
        self._refuse_left_out(way, messages, options)
        return made

    def _refuse_left_out(self, way: _Way, messages: list[Message], options: dict[str, Any]) -> None:
        """Raise RowError where the template shows the model less than the row says."""
        shape = hash((way.shape, _shape(messages, options)))
        if shape not in self._left_out:
            if len(self._left_out) >= _MAX_SHAPES:
                self._left_out.clear()
            self._left_out[shape] = _find_left_out(way, messages, options)
        param = self._left_out[shape]
        if param == "tools":
            message = "the model's chat template has no place for tools; leave them out"
            raise RowError("template_ignores_tools", message, param=param)
        if param is not None:
            raise RowError(
                "template_ignores_message",
                f"the model's chat template leaves out {param}; move its text into a user"
                " message, or give another template with --chat-template",
                param=param,
            )


def _apply(function: Callable[..., Any], messages: list[Message], options: dict[str, Any]) -> Any:
    with row_error("template_error", "the chat template refuses the row", "messages"):
        # Some models render in Python, and may write into what they are given.
        messages, options = copy.deepcopy((messages, options))
        return function(messages, **options)


def _find_left_out(way: _Way, messages: list[Message], options: dict[str, Any]) -> str | None:
    """The first message whose text, or "tools" if these, do not show in the rendering."""
    marked = [
        _marked(message, _marker(index)) if _must_show(message) else message
        for index, message in enumerate(messages)
    ]
    try:
        text = _apply(way.show, marked, options)
        if options["tools"]:
            without = _apply(way.show, marked, {**options, "tools": None})
    except RowError:
        # The row itself was rendered: only the markers, or the lack of tools, do not suit.
        return None
    for index, message in enumerate(messages):
        if _must_show(message) and _marker(index) not in text:
            return f"messages[{index}]"
    return "tools" if options["tools"] and text == without else None


def _options(request: Request, messages: list[Message]) -> dict[str, Any]:
    options = dict(request.template_kwargs)
    for name in options:
        where = f"chat_template_kwargs.{name}"
        if name in _RESERVED:
            raise RowError("invalid_request", f"{where} cannot be set by a row", param=where)
        if name in _SWITCHES and not isinstance(options[name], bool):
            raise RowError("invalid_request", f"{where} must be true or false", param=where)
    goes_on = options.get("continue_final_message", False)
    if goes_on:
        _check_goes_on(options, messages)
    options.setdefault("add_generation_prompt", not goes_on)
    return {**options, "tools": request.tools or None}


def _check_goes_on(options: dict[str, Any], messages: list[Message]) -> None:
    where = "chat_template_kwargs.continue_final_message"
    if options.get("add_generation_prompt"):
        message = f"{where} and add_generation_prompt cannot both be true"
        raise RowError("invalid_request", message, param=where)
    if messages[-1]["role"] != "assistant":
        message = f"{where} needs a last message of role 'assistant'"
        raise RowError("invalid_request", message, param=where)


def _must_show(message: Message) -> bool:
    # Templates may cut an assistant's earlier words, as its reasoning; nobody else's.
    return message["role"] != "assistant" and bool(_text_of(message["content"]).strip())


def _text_of(content: str | list[Message]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def _marked(message: Message, marker: str) -> Message:
    """The message with `marker` for its text, where it has some."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": marker}
    return {
        **message,
        "content": [{**p, "text": marker} if p["type"] == "text" else p for p in content],
    }


def _marker(index: int) -> str:
    return f"batchrun{index}marker"


def _shape(messages: list[Message], options: dict[str, Any]) -> int:
    """Hash of what a template's choice of parts can depend on, the words themselves aside."""
    turns = tuple(
        (m["role"], _must_show(m), "tool_calls" in m, _kinds(m["content"])) for m in messages
    )
    switches = {**options, "tools": bool(options["tools"])}
    return hash((turns, repr(sorted(switches.items()))))


def _kinds(content: str | list[Message]) -> tuple[str, ...]:
    return () if isinstance(content, str) else tuple(part["type"] for part in content)
