"""mlx-lm's caches of one sequence <-> named arrays and a JSON description of what they belong to.

Only kinds of cache whose meaning is known are taken, and of each only what later tokens can see:
plain caches allocate ahead, sliding windows may still hold tokens that have left the window.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)


class NotStorable(Exception):
    """These caches cannot be stored; the message says why."""


@dataclass(slots=True)
class Packed:
    """`arrays` by name, and the JSON text that says where each belongs."""

    arrays: dict[str, mx.array] = field(default_factory=dict)
    layout: str = ""
    is_trimmable: bool = False


def pack(caches: list[Any], length: int) -> Packed:
    """Caches, one per layer, that hold `length` tokens of one sequence. Raises NotStorable."""
    for cache in _leaves(caches):
        _check(cache, length)
    packed = Packed(is_trimmable=all(cache.is_trimmable() for cache in caches))
    packed.layout = json.dumps([_describe(cache, packed.arrays) for cache in caches])
    return packed


def serialised(packed: Packed, key: str) -> memoryview:
    """The content of the file of `key`. Copies MLX's arrays, in the thread that they belong to."""
    buffer = io.BytesIO()
    mx.save_safetensors(buffer, packed.arrays, metadata={"key": key, "caches": packed.layout})
    return buffer.getbuffer()


def unpack(arrays: dict[str, mx.array], layout: str) -> list[Any]:
    """What was packed, as fresh caches."""
    return [_rebuild(description, arrays) for description in json.loads(layout)]


def trim(caches: list[Any], num_tokens: int) -> None:
    """Forget the last `num_tokens` tokens, in place, and the memory that they take."""
    for cache in _leaves(caches):
        cache.trim(num_tokens)
        cache.state = tree_map(_alone, _STATES[type(cache)](cache))


def arrays_of(caches: list[Any]) -> list[Any]:
    """All arrays in caches, as `mx.eval` takes them."""
    return [cache.state for cache in _leaves(caches)]


def _alone(value: Any) -> Any:
    return mx.contiguous(value) if isinstance(value, mx.array) else value


def _leaves(caches: Any) -> Iterator[Any]:
    for cache in caches:
        if type(cache) is CacheList:
            yield from _leaves(cache.caches)
        else:
            yield cache


def _check(cache: Any, length: int) -> None:
    kind = type(cache)
    if kind not in _STATES:
        raise NotStorable(f"prefixes of this model cannot be stored: unknown cache {kind.__name__}")
    if kind is not ArraysCache and not cache.empty() and cache.offset != length:
        raise NotStorable(f"a cache of {cache.offset} tokens was given for {length} tokens")


def _first(tree: Any, length: int) -> Any:
    """The first `length` tokens of keys or values."""
    return None if tree is None else tree_map(lambda array: array[..., :length, :], tree)


def _kv_state(cache: KVCache) -> tuple[Any, ...]:
    keys, values, offset = cache.state
    return _first(keys, offset), _first(values, offset), offset


def _quantized_state(cache: QuantizedKVCache) -> tuple[Any, ...]:
    keys, values, offset, group_size, bits = cache.state
    return _first(keys, offset), _first(values, offset), offset, group_size, bits


def _rotating_state(cache: RotatingKVCache) -> tuple[Any, ...]:
    keys, values, offset, keep, max_size, position = cache.state
    if keys is None:
        return cache.state
    if position == offset:  # never wrapped: what follows is spare
        keys, values = _first(keys, offset), _first(values, offset)
    if keep == 0 and position == keys.shape[2] > max_size:  # in order, and longer than the window
        keys, values = keys[..., -max_size:, :], values[..., -max_size:, :]
        position = max_size
    return keys, values, offset, keep, max_size, position


def _arrays_state(cache: ArraysCache) -> tuple[Any, ...]:
    return cache.state


_STATES: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    KVCache: _kv_state,
    QuantizedKVCache: _quantized_state,
    RotatingKVCache: _rotating_state,
    ArraysCache: _arrays_state,
}
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in _STATES}


def _describe(cache: Any, arrays: dict[str, mx.array]) -> dict[str, Any]:
    if type(cache) is CacheList:
        return {"caches": [_describe(inner, arrays) for inner in cache.caches]}
    state = _STATES[type(cache)](cache)
    return {"kind": type(cache).__name__, "state": [_name(value, arrays) for value in state]}


def _name(value: Any, arrays: dict[str, mx.array]) -> Any:
    """`value` with each array in it, moved to `arrays`, replaced by its name there."""
    if isinstance(value, mx.array):
        name = str(len(arrays))
        arrays[name] = value
        return {"array": name}
    if isinstance(value, (list, tuple)):
        return [_name(part, arrays) for part in value]
    return value


def _rebuild(description: dict[str, Any], arrays: dict[str, mx.array]) -> Any:
    if "caches" in description:
        return CacheList(*(_rebuild(inner, arrays) for inner in description["caches"]))
    state = [_resolve(value, arrays) for value in description["state"]]
    return _KINDS[description["kind"]].from_state(state)


def _resolve(value: Any, arrays: dict[str, mx.array]) -> Any:
    if isinstance(value, dict):
        return arrays[value["array"]]
    if isinstance(value, list):
        return [_resolve(part, arrays) for part in value]
    return value
