"""Prompts as rank 0 tells them: what an engine needs of one as JSON, and a prompt again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import takewhile
from typing import Any, TypeVar

from batchrun.records import (
    Choice,
    Grammar,
    Prefix,
    Prompt,
    Request,
    Row,
    Sampling,
    Shape,
    Thinking,
)

T = TypeVar("T")


class Packer:
    """Packs prompts in running order: a prefix goes by its length, and once for the prompts below
    it, which follow one another."""

    def __init__(self) -> None:
        self._chain: list[Prefix] = []

    def __call__(self, prompt: Prompt) -> dict[str, Any]:
        chain = _chain(prompt.prefix)
        pairs = zip(self._chain, chain, strict=False)
        num_known = len(list(takewhile(lambda pair: pair[0] is pair[1], pairs)))
        self._chain = chain
        return {
            "key": prompt.key,
            "token_ids": prompt.token_ids,
            "num_known": num_known,
            "prefixes": [(len(p.token_ids), p.num_prompts) for p in chain[num_known:]],
            "sampling": asdict(prompt.sampling),
            "label": prompt.request.label,
            "prompt_logprobs": prompt.request.prompt_logprobs,
            "shape": asdict(prompt.grammar.shape) if prompt.grammar else None,
            "choices": [asdict(choice) for choice in prompt.choices],
            "continuation": prompt.continuation,
            "thinking": asdict(prompt.thinking) if prompt.thinking else None,
        }


class Unpacker:
    """Makes prompts of what one Packer gave, in its order; `compile` makes grammars. Their rows and
    messages are left out, as no engine looks at these."""

    def __init__(self, compile: Callable[[Shape], Grammar]):  # noqa: A002
        self._compile = compile
        self._chain: list[Prefix] = []

    def __call__(self, packed: dict[str, Any]) -> Prompt:
        request = Request(
            Row(0, "", 0),
            _record(Sampling, packed["sampling"]),
            label=packed["label"],
            prompt_logprobs=packed["prompt_logprobs"],
        )
        shape = packed["shape"]
        thinking = packed["thinking"]
        return Prompt(
            request,
            packed["token_ids"],
            packed["key"],
            prefix=self._prefix(packed),
            grammar=self._compile(Shape(**shape)) if shape else None,
            choices=tuple(_record(Choice, choice) for choice in packed["choices"]),
            continuation=tuple(packed["continuation"]),
            thinking=_record(Thinking, thinking) if thinking else None,
        )

    def _prefix(self, packed: dict[str, Any]) -> Prefix | None:
        del self._chain[packed["num_known"] :]
        for length, num_prompts in packed["prefixes"]:
            parent = self._chain[-1] if self._chain else None
            self._chain.append(Prefix(packed["token_ids"][:length], num_prompts, parent))
        return self._chain[-1] if self._chain else None


def _chain(prefix: Prefix | None) -> list[Prefix]:
    """A prefix and what it goes on from, shortest first."""
    chain: list[Prefix] = []
    while prefix is not None:
        chain.insert(0, prefix)
        prefix = prefix.parent
    return chain


def _record(kind: Callable[..., T], values: dict[str, Any]) -> T:
    return kind(**{name: _with_tuples(value) for name, value in values.items()})


def _with_tuples(value: Any) -> Any:
    """JSON has lists where records have tuples."""
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
