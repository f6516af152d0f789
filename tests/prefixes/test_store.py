"""What is found: the most tokens that any entry can give, and nothing that is another's."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ChunkedKVCache

from batchrun import models
from batchrun.config import ModelConfig
from batchrun.prefixes import store as store_module
from batchrun.prefixes.blocks import BLOCK_TOKENS
from batchrun.prefixes.store import fingerprint
from tests import tiny
from tests.prefixes.builders import (
    OTHER_MODEL,
    entry_files,
    kv_caches,
    loaded,
    opened,
    prompt,
    recurrent_caches,
    saved,
)

# Beginnings of prompts: pieces of which some are shared, some end within a block.
PIECES = st.lists(st.sampled_from([(1, 64), (2, 64), (1, 10), (3, 70), (2, 1)]), max_size=4)


def spelled(pieces: list[tuple[int, int]]) -> list[int]:
    return [token for token, count in pieces for _ in range(count)]


def common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def usable(entry: list[int], token_ids: list[int], *, is_trimmable: bool) -> int:
    shared = common(entry, token_ids)
    return shared if shared == len(entry) or (is_trimmable and shared >= BLOCK_TOKENS) else 0


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    entries=st.lists(st.tuples(PIECES.filter(bool).map(spelled), st.booleans()), max_size=4),
    token_ids=PIECES.map(spelled),
)
def test_the_longest_usable_entry_is_found(
    entries: list[tuple[list[int], bool]],
    token_ids: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("prefixes")
    kinds = {tuple(entry): is_trimmable for entry, is_trimmable in entries}
    with opened(folder) as store:
        for entry, is_trimmable in kinds.items():
            make = kv_caches if is_trimmable else recurrent_caches
            store.save(list(entry), make(list(entry)), 1.0)
    lengths = [usable(list(entry), token_ids, is_trimmable=kinds[entry]) for entry in kinds]
    with opened(folder) as store:
        found = store.find(token_ids)
        assert (found.length if found else 0) == max(lengths, default=0)
        if found is not None:
            caches = store.load(found)
            assert caches is not None
            if found.length < found.entry_length:
                assert caches[0].offset == found.length
    shutil.rmtree(folder)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_the_same_prompt_again_and_a_token_more_or_less(tmp_path: Path, length: int) -> None:
    token_ids = prompt(length)
    saved(tmp_path, token_ids)

    with opened(tmp_path) as store:
        assert loaded(store, token_ids) == token_ids
        assert loaded(store, [*token_ids, 5]) == token_ids
        shorter = token_ids[:-1]
        assert loaded(store, shorter) == (shorter if length > BLOCK_TOKENS else None)
        assert store.notes == []


def test_another_first_token_finds_nothing(tmp_path: Path) -> None:
    saved(tmp_path, prompt(200, first=1))
    with opened(tmp_path) as store:
        assert store.find(prompt(200, first=2)) is None
        assert store.find([]) is None


def test_of_entries_that_give_the_same_the_smallest_is_read(tmp_path: Path) -> None:
    saved(tmp_path, prompt(300))
    small = saved(tmp_path, prompt(200))
    saved(tmp_path, prompt(400))
    with opened(tmp_path) as store:
        found = store.find([*prompt(200), 1, 2])
        assert found is not None
        assert (found.key, found.nbytes) == (small.stem, small.stat().st_size)


def test_a_prefix_found_in_part_is_saved_on_its_own(tmp_path: Path) -> None:
    saved(tmp_path, prompt(300))
    assert saved(tmp_path, prompt(200)) != tmp_path


def test_a_prefix_is_written_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.save(prompt(70), kv_caches(prompt(70)), 1.0)
        store.save(prompt(70), kv_caches(prompt(70)), 1.0)
    assert store.notes == []
    (path,) = entry_files(tmp_path)
    written = path.stat()
    with opened(tmp_path) as store:
        store.save(prompt(70), kv_caches(prompt(70)), 1.0)
    assert path.stat().st_ino == written.st_ino


def test_an_entry_says_what_it_costs_and_saves(tmp_path: Path) -> None:
    path = saved(tmp_path, prompt(200), seconds=4.0)
    with opened(tmp_path) as store:
        whole, half = store.find(prompt(200)), store.find(prompt(100))
    assert whole is not None
    assert half is not None
    assert whole.nbytes == half.nbytes == path.stat().st_size
    assert (whole.seconds_saved, half.seconds_saved) == pytest.approx((4.0, 2.0))


def test_saving_leaves_the_caches_to_be_used_further(tmp_path: Path) -> None:
    """What the engine does next must not change what is written later."""
    caches = kv_caches(prompt(100))
    with opened(tmp_path) as store:
        store.save(prompt(100), caches, 1.0)
        for cache in caches:
            cache.trim(50)
            cache.update_and_fetch(mx.ones((1, 1, 50, 8)), mx.ones((1, 1, 50, 8)))
            mx.eval(cache.state)
    with opened(tmp_path) as store:
        assert loaded(store, prompt(100)) == prompt(100)


def test_an_unknown_kind_of_cache_is_not_saved_and_said_once(tmp_path: Path) -> None:
    cache = ChunkedKVCache(64)
    cache.update_and_fetch(mx.ones((1, 1, 5, 8)), mx.ones((1, 1, 5, 8)))
    with opened(tmp_path) as store:
        store.save(prompt(5), [cache], 1.0)
        store.save(prompt(5, first=2), [cache], 1.0)
    assert entry_files(tmp_path) == []
    assert len(store.notes) == 1
    assert "ChunkedKVCache" in store.notes[0]


def test_caches_of_other_tokens_are_not_saved(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.save(prompt(100), kv_caches(prompt(99)), 1.0)
    assert entry_files(tmp_path) == []
    assert "99 tokens" in store.notes[0]


def test_another_models_prefix_is_not_found(tmp_path: Path) -> None:
    saved(tmp_path, prompt(200))
    with opened(tmp_path, model=OTHER_MODEL) as store:
        assert store.find(prompt(200)) is None


def fingerprint_of(folder: Path, adapter: Path | None = None, dtype: str = "float32") -> str:
    config = ModelConfig(model=str(folder), adapter=None if adapter is None else str(adapter))
    return fingerprint(models.locate(config, lambda _: None).identity, dtype)


def test_changed_weights_tokenizer_dtype_adapter_and_library_are_other_models(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama")
    words = Path(shutil.copytree(model, tmp_path / "words"))
    tiny.write_tokenizer(words, add_prefix_space=True)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    mx.save_safetensors(str(adapter / "adapters.safetensors"), {"a": mx.zeros((2, 2))})
    prints = [
        fingerprint_of(model),
        fingerprint_of(tiny.build("llama", tmp_path / "weights", seed=1)),
        fingerprint_of(words),
        fingerprint_of(model, adapter),
        fingerprint_of(model, dtype="bfloat16"),
    ]
    monkeypatch.setattr(store_module, "version", lambda _: "9.9.9")
    prints.append(fingerprint_of(model))

    assert len(set(prints)) == len(prints)
    monkeypatch.setattr(store_module, "version", lambda _: "9.9.0")
    assert fingerprint_of(Path(shutil.copytree(model, tmp_path / "same"))) == prints[-1]


def test_everything_is_private_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "prefixes"
    before = os.umask(0)
    try:
        with opened(folder) as store:
            store.save(prompt(100), kv_caches(prompt(100)), 1.0)
            store.find(prompt(100))
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        modes |= {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    finally:
        os.umask(before)

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in modes} >= {"prefixes.sqlite", "prefixes.sqlite-wal"}
    assert len(modes) >= 4
    for path, mode in modes.items():
        assert mode == (0o700 if path.is_dir() or path.suffix == "" else 0o600), path


def test_a_folder_that_is_there_keeps_its_mode_and_what_others_keep_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    theirs = [tmp_path / "notes.txt", tmp_path / "models" / "model.safetensors"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("theirs")
    saved(tmp_path, prompt(100))
    with opened(tmp_path):
        pass

    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [path.read_text() for path in theirs] == ["theirs", "theirs"]
