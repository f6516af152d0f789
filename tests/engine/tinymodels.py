"""Tiny models ready for the engine, and the plain reference to hold it against."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import load as load_tokenizer
from mlx_lm.utils import load_model

# Two ways of adding up the same float32 products may differ by this much in a logit.
ROUNDING = 2e-4


class TinyModel:
    """A model directory's module with what the engine asks of a model."""

    def __init__(self, path: Path):
        self.module, _ = load_model(path)
        self.tokenizer = load_tokenizer(path)

    takes_positions = False

    def __call__(self, tokens: mx.array, cache: list[Any], given: None = None) -> mx.array:
        return self.module(tokens, cache=cache)

    def modules(self) -> list[Any]:
        return self.module.modules()

    def make_cache(self) -> list[Any]:
        return make_prompt_cache(self.module)


@cache
def load(path: Path) -> TinyModel:
    return TinyModel(path)


def logits_alone(model: TinyModel, token_ids: list[int]) -> mx.array:
    """Float32 logits (vocabulary) after `token_ids`, from one forward pass without a cache."""
    return model.module(mx.array([token_ids]))[0, -1].astype(mx.float32)


def assert_greedy(model: TinyModel, prompt: list[int], answer: list[int], message: str) -> None:
    """`answer` is what greedy decoding of `prompt` alone gives: each of its tokens is the
    likeliest after those before it, ties within rounding aside."""
    caches = model.make_cache()
    logits = model(mx.array([[*prompt, *answer[:-1]]]), cache=caches)[0, len(prompt) - 1 :]
    chosen = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=-1)[:, 0]
    short = (mx.max(logits, axis=-1) - chosen).tolist()
    worst = max(range(len(answer)), key=short.__getitem__)
    assert short[worst] <= ROUNDING, f"{message}: token {worst} is {short[worst]} below the best"
