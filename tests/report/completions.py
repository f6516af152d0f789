"""Completions as the engine makes them, for what records them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchrun.records import Completion, Media, MediaSpan, Prompt, Request, Row, Sampling


def completion(
    index: int = 0,
    *,
    text: str = "an answer",
    prompt_tokens: int = 5,
    tokens: int = 3,
    seconds: float = 1.0,
    messages: list[dict[str, Any]] | None = None,
    prompt: str | list[int] | None = None,
    thumbnails: Sequence[bytes] = (),
) -> Completion:
    if messages is None and prompt is None:
        messages = [{"role": "user", "content": f"question {index}"}]
    request = Request(Row(index, "in.jsonl", index + 1), Sampling(), messages, prompt)
    media = tuple(MediaSpan(0, 1, Media(b"", [1], {}, each)) for each in thumbnails)
    asked = Prompt(request, [1] * prompt_tokens, f"key-{index}", media=media)
    return Completion(asked, 0, [1] * tokens, text, "stop", seconds=seconds)
