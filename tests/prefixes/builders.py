"""Stores of small made-up caches, and what is in their folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache

from batchrun.prefixes.store import PrefixStore

MODEL = "0" * 40
OTHER_MODEL = "1" * 40
ROOMY = 1 << 30


@contextmanager
def opened(
    folder: Path, *, model: str = MODEL, name: str = "tiny", max_bytes: int = ROOMY
) -> Iterator[PrefixStore]:
    store = PrefixStore(folder, fingerprint=model, model_name=name, max_bytes=max_bytes)
    try:
        yield store
    finally:
        store.close()


def prompt(length: int, first: int = 7) -> list[int]:
    return [first, *((31 * i) % 1000 for i in range(1, length))]


def kv_caches(token_ids: list[int], width: int = 8) -> list[Any]:
    """Two plain layers, whose keys are the token ids themselves."""
    caches = [KVCache(), KVCache()]
    keys = mx.broadcast_to(mx.array(token_ids, mx.float32)[:, None], (len(token_ids), width))
    for layer, cache in enumerate(caches):
        cache.update_and_fetch(keys[None, None] + layer, -keys[None, None])
    mx.eval([cache.state for cache in caches])
    return caches


def recurrent_caches(token_ids: list[int]) -> list[Any]:
    """One layer whose state is of all tokens at once."""
    cache = ArraysCache(2)
    cache[0] = mx.array([[float(sum(token_ids))]])
    return [cache]


def saved(folder: Path, token_ids: list[int], *, seconds: float = 1.0, **store: Any) -> Path:
    """Saves made-up plain caches of `token_ids`; returns the new file, or the folder of none."""
    before = set(entry_files(folder))
    with opened(folder, **store) as place:
        place.save(token_ids, kv_caches(token_ids), seconds)
    return next(iter(set(entry_files(folder)) - before), folder)


def loaded(store: PrefixStore, token_ids: list[int]) -> list[int] | None:
    """The token ids that loaded made-up caches hold."""
    found = store.find(token_ids)
    caches = None if found is None else store.load(found)
    if found is None or caches is None:
        return None
    assert [cache.offset for cache in caches] == [found.length] * 2
    assert all(cache.keys.shape[2] == found.length for cache in caches)
    return [int(token) for token in caches[0].keys[0, 0, :, 0].tolist()]


def entry_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def others(folder: Path) -> list[str]:
    """Names of files that are neither entries nor the index."""
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    return [
        name
        for name in names
        if not name.endswith(".safetensors") and not name.startswith("prefixes.sqlite")
    ]
