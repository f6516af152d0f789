"""How a model's chat template wants to be told of images and videos.

Templates differ: most take a list of parts, some take nothing else even for plain text, and some
want the model's own words for an image within the text. Which of these a template wants is tried
out on small conversations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2.exceptions import TemplateError

from batchrun.models.markers import Markers

Message = dict[str, Any]
Render = Callable[[list[Message], dict[str, Any]], str]

_WORD = "batchrunword"
# What templates raise on a form that is not theirs.
_REFUSALS = (TemplateError, ValueError, TypeError, KeyError, AttributeError, IndexError)


class MessageForms:
    """render: the model's chat template. renders: other ways to the same, tried in order where
    that one shows no images. vocabulary: all words that are tokens of their own."""

    def __init__(self, render: Render, others: list[Render], vocabulary: list[str]):
        self._vocabulary = vocabulary
        self._render = render
        for candidate in (render, *others):
            if self._markers(candidate, "image").text:
                self._render = candidate
                break
        self._takes_strings = _WORD in _tried(self._render, [_message(_WORD)])
        self.images = self._markers(self._render, "image")
        self.videos = self._markers(self._render, "video")

    def render(self, messages: list[Message], options: dict[str, Any]) -> str:
        if not self._takes_strings:
            messages = [_with_parts(message) for message in messages]
        return self._render(messages, options)

    def _markers(self, render: Render, kind: str) -> Markers:
        one, two = (
            _tried(render, [_message([*[{"type": kind}] * count, _text(_WORD)])])
            for count in (1, 2)
        )
        shown = _WORD in one and _WORD in two
        if not shown:
            return Markers(kind, "", frozenset())
        return Markers.found(kind, one, two, self._vocabulary)


def _tried(render: Render, messages: list[Message]) -> str:
    try:
        return render(messages, {"add_generation_prompt": True})
    except _REFUSALS:
        return ""


def _message(content: str | list[Message]) -> Message:
    return {"role": "user", "content": content}


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def _with_parts(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": [_text(content)]} if isinstance(content, str) else message
