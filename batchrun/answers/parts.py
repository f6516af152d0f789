"""The parts of an answer: reasoning, text, and calls of tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from batchrun.engine.finishing import Decoder
from batchrun.records import Completion, Dialect, Thinking


@dataclass(frozen=True, slots=True)
class Parts:
    """`text` is the answer's part beside reasoning and calls. `reasoning_tokens` includes what
    marks the block."""

    text: str
    reasoning: str | None = None
    reasoning_tokens: int | None = None
    calls: tuple[dict[str, Any], ...] = ()


class PartReader:
    """Reads answers written in `dialect`; `ends` are the tokens that end one."""

    def __init__(self, dialect: Dialect, decoder: Decoder, ends: frozenset[int]):
        self._dialect = dialect
        self._decoder = decoder
        self._ends = ends

    def read(self, completion: Completion) -> Parts:
        """Text in which nothing is marked is the completion's own."""
        thinking = completion.prompt.thinking
        ids = self._written(completion)
        begin, end = _block(ids, thinking) if thinking else (0, 0)
        if end == 0:
            tokens = None if thinking is None else 0
            return self._with_calls(completion, ids, completion.text, Parts("", None, tokens))
        closing = len(thinking.end) if thinking and _is_closed(ids[:end], thinking) else 0
        reasoning = self._cut(completion, self._decode(ids[begin : end - closing]))
        text = self._cut(completion, self._decode(ids[end:]))
        parts = Parts("", reasoning.strip(), end)
        return self._with_calls(completion, ids[end:], text, parts)

    def _with_calls(self, completion: Completion, ids: list[int], text: str, parts: Parts) -> Parts:
        request = completion.prompt.request
        calls: list[dict[str, Any]] = []
        if request.tools and self._dialect.parse_calls is not None:
            raw = self._decoder.decode(ids, skip_special_tokens=False) if ids else ""
            if self._dialect.call_start in raw:
                text, calls = self._split(self._cut(completion, raw), request.tools)
        if not request.parallel_tool_calls:
            calls = calls[:1]
        made = [_openai_call(completion, number, call) for number, call in enumerate(calls)]
        return Parts(text, parts.reasoning, parts.reasoning_tokens, tuple(made))

    def _split(self, raw: str, tools: Any) -> tuple[str, list[dict[str, Any]]]:
        """What stands outside of calls, and the calls; one that cannot be read stays where it is,
        as it was written."""
        start, end = self._dialect.call_start, self._dialect.call_end
        outside, calls = "", []
        while start and start in raw:
            before, _, rest = raw.partition(start)
            inside, closing, raw = rest.partition(end) if end else (rest, "", "")
            read = self._parse(inside, tools)
            outside += before if read else f"{before}{start}{inside}{closing}"
            calls += read
        outside += raw
        return (outside.strip() if calls else outside), calls

    def _parse(self, text: str, tools: Any) -> list[dict[str, Any]]:
        assert self._dialect.parse_calls is not None
        try:
            found = self._dialect.parse_calls(text, tools)
        # The parsers are regular expressions over what a model wrote, and raise whatever they meet.
        except Exception:  # noqa: BLE001
            return []
        calls = found if isinstance(found, list) else [found]
        return calls if all(map(_is_call, calls)) else []

    def _written(self, completion: Completion) -> list[int]:
        """The answer's tokens without the one that ended it."""
        ids = completion.token_ids
        reason = completion.stop_reason
        is_end = completion.finish_reason == "stop" and bool(ids)
        if is_end and (ids[-1] == reason or (reason is None and ids[-1] in self._ends)):
            return ids[:-1]
        return ids

    def _decode(self, ids: list[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=True) if ids else ""

    def _cut(self, completion: Completion, text: str) -> str:
        """Before the stop string that ended the answer."""
        reason = completion.stop_reason
        return text.partition(reason)[0] if isinstance(reason, str) else text


def _block(ids: list[int], thinking: Thinking) -> tuple[int, int]:
    """Where the tokens of the reasoning begin and where what closes it ends; (0, 0) for none."""
    begin = 0
    if not thinking.is_open:
        begin = len(thinking.start)
        if tuple(ids[:begin]) != thinking.start:
            return 0, 0
    size = len(thinking.end)
    for place in range(begin, len(ids) - size + 1):
        if tuple(ids[place : place + size]) == thinking.end:
            return begin, place + size
    return begin, len(ids)


def _is_closed(ids: list[int], thinking: Thinking) -> bool:
    return tuple(ids[-len(thinking.end) :]) == thinking.end


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call


def _openai_call(completion: Completion, number: int, call: dict[str, Any]) -> dict[str, Any]:
    """With an id that is the same whenever the same answer is given."""
    name = f"{completion.prompt.key} {completion.choice} {number}"
    arguments = call["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": f"call_{sha256(name.encode()).hexdigest()[:24]}",
        "type": "function",
        "function": {"name": call["name"], "arguments": arguments},
    }
