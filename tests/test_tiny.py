"""The tiny models are worth testing with: repeatable, varied, and aware of their whole prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from tests import tiny

PROMPT = [(7 * i) % 300 + 3 for i in range(33)]


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_greedy_tokens_vary_and_depend_on_the_first_token(
    kind: str, tiny_model: Callable[..., Path]
) -> None:
    module, _ = load_model(tiny_model(kind))
    first = tiny.greedy(module, make_prompt_cache(module), PROMPT, 12)
    other = tiny.greedy(module, make_prompt_cache(module), [50, *PROMPT[1:]], 12)
    assert len(set(first)) >= 6
    assert first != other


def test_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = (
        tiny.build("qwen3_next", tmp_path / "one"),
        tiny.build("qwen3_next", tmp_path / "two"),
    )
    names = sorted(path.name for path in one.iterdir())
    assert [(one / name).read_bytes() for name in names] == [
        (two / name).read_bytes() for name in names
    ]


def test_seeds_give_different_weights(tmp_path: Path) -> None:
    one = tiny.build("llama", tmp_path / "one", seed=1) / "model.safetensors"
    two = tiny.build("llama", tmp_path / "two", seed=2) / "model.safetensors"
    assert one.read_bytes() != two.read_bytes()
