"""Prompts whose answers have shapes, and what decoding them alone gives."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from batchrun.prepare.grammars import CompiledGrammar, Grammars
from batchrun.records import Prompt, Request, Row, Sampling, Shape
from tests import tiny
from tests.engine.tinymodels import TinyModel, logits_alone

EOS = tiny.IM_END
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


def schema(value: Any) -> Shape:
    return Shape("json", json.dumps(value), "schema")


SHAPES = [
    schema(PERSON),
    None,
    Shape("regex", "[0-9]{3}-[a-z]{1,5}"),
    Shape("choice", json.dumps(["positive", "negative", "neutral"])),
    None,
    Shape("lark", 'start: "a" b{2,9}\nb: "x" | "y"'),
    schema({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4}),
]


@cache
def grammars(model: TinyModel, vocab_size: int = tiny.VOCAB_SIZE) -> Grammars:
    return Grammars(model.tokenizer, [EOS], vocab_size)


def guided(
    model: TinyModel, index: int, token_ids: list[int], shape: Shape | None, **sampling: Any
) -> Prompt:
    row = Row(index, "test.jsonl", index + 1)
    request = Request(row, Sampling(**sampling), prompt=token_ids, shape=shape)
    grammar = None if shape is None else grammars(model).compile(shape)
    return Prompt(request, token_ids, key=f"key-{index}", grammar=grammar)


def greedy_alone(model: TinyModel, prompt: Prompt) -> list[int]:
    """The likeliest tokens among those that the grammar allows, one whole forward pass each."""
    assert isinstance(prompt.grammar, CompiledGrammar)
    matcher = prompt.grammar.begin()
    answer: list[int] = []
    while len(answer) < prompt.sampling.max_tokens:
        logits = np.array(logits_alone(model, [*prompt.token_ids, *answer]))
        bits = np.unpackbits(
            np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little", count=len(logits)
        )
        answer.append(int(np.where(bits == 1, logits, -np.inf).argmax()))
        matcher.consume_token(answer[-1])
        if answer[-1] == EOS or matcher.is_stopped():
            break
    return answer


def follows(model: TinyModel, prompt: Prompt, token_ids: list[int]) -> bool:
    """Whether the grammar allows these tokens one after the other."""
    assert prompt.grammar is not None
    return bool(prompt.grammar.begin().consume_tokens(token_ids))


class Failing:
    """A model that raises once: at the first call with several rows after `calls_left` others."""

    def __init__(self, model: TinyModel):
        self._model = model
        self._failures = 1
        self.calls_left = 10**9

    def modules(self) -> list[Any]:
        return self._model.modules()

    def make_cache(self) -> list[Any]:
        return self._model.make_cache()

    takes_positions = False

    def __call__(self, tokens: mx.array, cache: list[Any], given: None = None) -> mx.array:
        self.calls_left -= 1
        if self.calls_left <= 0 < self._failures and len(tokens) > 1:
            self._failures -= 1
            raise RuntimeError("once")
        return self._model(tokens, cache)
