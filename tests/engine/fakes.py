"""A model without weights whose answers can be told in advance, and prompts for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from batchrun.engine import Engine
from batchrun.records import Completion, Failure, Prompt, Request, Row, Sampling

VOCAB_SIZE = 64
EOS = 63


class CountingModel:
    """Every token is followed by the next number, 62 by EOS (63). `poison` raises when fed;
    `widths` and `rows` remember the shape of every input."""

    def __init__(self, poison: int | None = None, error: Exception | None = None):
        self.poison = poison
        self.error = error or RuntimeError("poisoned")
        self.widths: list[int] = []
        self.rows: list[int] = []

    takes_positions = False

    def modules(self) -> list[Any]:
        return []

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, cache: list[Any], given: None = None) -> mx.array:
        self.rows.append(tokens.shape[0])
        self.widths.append(tokens.shape[1])
        if self.poison is not None and (tokens == self.poison).any().item():
            raise self.error
        keys = tokens[:, None, :, None].astype(mx.float32)
        cache[0].update_and_fetch(keys, keys)
        return 10.0 * (mx.arange(VOCAB_SIZE) == mx.minimum(tokens + 1, EOS)[..., None])


class Spelling:
    """A tokenizer whose token n is the letter number n of the alphabet, over and over."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + token % 26) for token in token_ids)


def prompt(index: int, token_ids: list[int], **sampling: Any) -> Prompt:
    request = Request(Row(index, "test.jsonl", index + 1), Sampling(**sampling), prompt=token_ids)
    return Prompt(request, token_ids, key=f"key-{index}")


def engine(model: Any, **options: Any) -> Engine:
    return Engine(model, Spelling(), frozenset([EOS]), **options)


def run(engine: Engine, prompts: Iterable[Prompt | None]) -> list[Completion | Failure]:
    return [item for turn in engine.run(prompts) for item in turn]


def by_row(finished: list[Completion | Failure]) -> dict[int, list[int]]:
    """Token ids of rows with one choice, which must all have been answered once."""
    answers: dict[int, list[int]] = {}
    for item in finished:
        assert isinstance(item, Completion), item
        assert item.prompt.row.index not in answers
        answers[item.prompt.row.index] = item.token_ids
    return answers
