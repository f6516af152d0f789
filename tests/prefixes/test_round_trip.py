"""What was saved goes on, bit for bit, as if it had never been: every kind of cache and weight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from mlx_lm.utils import load_model

from tests import tiny
from tests.prefixes.builders import opened

PREFIX = [(7 * i) % 300 + 3 for i in range(100)]
SUFFIX = [(11 * i) % 300 + 3 for i in range(5)]
GROUP = 32


def as_stored(module: nn.Module) -> None:
    pass


def as_bfloat16(module: nn.Module) -> None:
    module.set_dtype(mx.bfloat16)


def quantised(module: nn.Module) -> None:
    def fits(_: str, part: Any) -> bool:
        return hasattr(part, "to_quantized") and part.weight.shape[-1] % GROUP == 0

    nn.quantize(module, group_size=GROUP, bits=4, class_predicate=fits)


def quantised_bfloat16(module: nn.Module) -> None:
    module.set_dtype(mx.bfloat16)
    quantised(module)


def prefilled(module: nn.Module, token_ids: list[int], chunk: int) -> list[Any]:
    caches = make_prompt_cache(module)
    for start in range(0, len(token_ids), chunk):
        module(mx.array([token_ids[start : start + chunk]]), cache=caches)
    mx.eval([cache.state for cache in caches])
    return caches


def continued(module: nn.Module, caches: list[Any]) -> mx.array:
    """Logits of a suffix in one piece, then token by token."""
    logits = [module(mx.array([SUFFIX]), cache=caches)]
    logits += [module(mx.array([[token]]), cache=caches) for token in SUFFIX]
    return mx.concatenate(logits, axis=1)


def assert_same_bits(one: mx.array, other: mx.array) -> None:
    assert one.dtype == other.dtype
    assert bytes(memoryview(mx.contiguous(one))) == bytes(memoryview(mx.contiguous(other)))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *((kind, as_stored) for kind in tiny.KINDS),
        # MLX has no bfloat16 products of experts on a CPU.
        *((kind, as_bfloat16) for kind in ("llama", "gemma3", "mamba2", "lfm2", "phi3")),
        *((kind, quantised) for kind in ("llama", "gemma3", "mamba2", "lfm2", "deepseek_v2")),
        *((kind, quantised_bfloat16) for kind in ("llama", "qwen3_next", "deepseek_v3")),
    ],
)
def test_a_loaded_prefix_goes_on_as_one_never_saved(
    kind: str,
    change: Callable[[nn.Module], None],
    tiny_model: Callable[..., Path],
    tmp_path: Path,
) -> None:
    module, _ = load_model(tiny_model(kind))
    change(module)
    caches = prefilled(module, PREFIX, chunk=64)
    with opened(tmp_path) as store:
        store.save(PREFIX, caches, 1.0)
    expected = continued(module, caches)

    with opened(tmp_path) as store:
        found = store.find([*PREFIX, *SUFFIX])
        assert found is not None
        assert found.length == len(PREFIX)
        loaded = store.load(found)
        assert store.notes == []
    assert loaded is not None
    assert [type(cache) for cache in loaded] == [type(cache) for cache in caches]
    assert_same_bits(continued(module, loaded), expected)


@pytest.mark.parametrize("length", [20, 31, 32, 33, 37, 100])
@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
def test_a_sliding_window_before_and_after_it_is_full(
    length: int, chunk: int, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    module, _ = load_model(tiny_model("gemma3"))
    caches = prefilled(module, PREFIX[:length], chunk)
    with opened(tmp_path) as store:
        store.save(PREFIX[:length], caches, 1.0)
    expected = continued(module, caches)

    with opened(tmp_path) as store:
        found = store.find(PREFIX[:length])
        assert found is not None
        loaded = store.load(found)
    assert loaded is not None
    assert_same_bits(continued(module, loaded), expected)


def test_what_no_later_token_sees_is_not_stored(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    module, _ = load_model(tiny_model("gemma3"))
    with opened(tmp_path) as store:
        store.save(PREFIX, prefilled(module, PREFIX, chunk=100), 1.0)
    with opened(tmp_path) as store:
        found = store.find(PREFIX)
        assert found is not None
        loaded = store.load(found)
    assert loaded is not None
    lengths = {type(cache): cache.keys.shape[2] for cache in loaded}
    assert lengths == {KVCache: 100, RotatingKVCache: 32}


def test_quantised_caches(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    module, _ = load_model(tiny_model("llama", head_dim=64))
    plain = prefilled(module, PREFIX, chunk=64)
    caches = [cache.to_quantized(group_size=GROUP, bits=8) for cache in plain]
    with opened(tmp_path) as store:
        store.save(PREFIX, caches, 1.0)
    expected = continued(module, caches)

    with opened(tmp_path) as store:
        found = store.find(PREFIX)
        assert found is not None
        loaded = store.load(found)
    assert loaded is not None
    assert [type(cache) for cache in loaded] == [QuantizedKVCache] * 2
    assert_same_bits(continued(module, loaded), expected)


def test_nested_caches_and_odd_values(tmp_path: Path) -> None:
    """A list of caches of several kinds, layers without any token, and states that are None."""
    plain, window, arrays = KVCache(), RotatingKVCache(max_size=4, keep=1), ArraysCache(3)
    values = mx.random.normal((1, 2, 6, 8))
    plain.update_and_fetch(values, values)
    for index in range(6):
        window.update_and_fetch(values[:, :, index : index + 1], values[:, :, index : index + 1])
    arrays[1] = mx.array([[1, 2]], mx.uint32)
    arrays.lengths = mx.array([3])
    caches = [CacheList(plain, window), arrays, KVCache(), RotatingKVCache(max_size=4)]
    with opened(tmp_path) as store:
        store.save(PREFIX[:6], caches, 1.0)

    with opened(tmp_path) as store:
        found = store.find(PREFIX[:6])
        assert found is not None
        loaded = store.load(found)
    assert loaded is not None
    inner = loaded[0]
    assert isinstance(inner, CacheList)
    assert_same_bits(inner[0].keys, values)
    assert_same_bits(inner[1].values, window.values)
    assert inner[1].state[2:] == window.state[2:]
    assert loaded[1][0] is None
    assert_same_bits(loaded[1][1], arrays[1])
    assert_same_bits(loaded[1].lengths, arrays.lengths)
    assert loaded[2].empty()
    assert loaded[3].empty()
    assert loaded[3].max_size == 4


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3", "gemma3"])
def test_part_of_a_stored_prefix_goes_on_as_if_computed(
    kind: str, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Plain caches at any length; a sliding window as long as it has not wrapped."""
    length = 90
    window = {"sliding_window": 128} if kind == "gemma3" else {}
    module, _ = load_model(tiny_model(kind, **window))
    with opened(tmp_path) as store:
        store.save(PREFIX, prefilled(module, PREFIX, chunk=100), 10.0)
    with opened(tmp_path) as store:
        found = store.find([*PREFIX[:length], 1, 2, 3])
        assert found is not None
        assert (found.length, found.entry_length) == (length, 100)
        assert found.seconds_saved == pytest.approx(length / 10)
        loaded = store.load(found)
    assert loaded is not None

    expected = continued(module, prefilled(module, PREFIX[:length], chunk=100))
    assert mx.allclose(continued(module, loaded), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", ["gemma3", "mamba2", "lfm2", "qwen3_next"])
def test_no_part_of_a_state_that_cannot_be_trimmed(
    kind: str, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    module, _ = load_model(tiny_model(kind))
    with opened(tmp_path) as store:
        store.save(PREFIX, prefilled(module, PREFIX, chunk=100), 1.0)
    with opened(tmp_path) as store:
        assert store.find([*PREFIX[:90], 1, 2, 3]) is None
        assert store.find(PREFIX[:-1]) is None
        assert store.find(PREFIX) is not None
        assert store.find([*PREFIX, 1]) is not None
