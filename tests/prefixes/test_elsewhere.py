"""Prefixes at a URL: what one machine saved another one loads, and no trouble there stops a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchrun.prefixes import elsewhere
from batchrun.prefixes.store import PrefixStore
from batchrun.remote import StoreError
from tests.bucket import Bucket
from tests.prefixes.builders import (
    MODEL,
    OTHER_MODEL,
    ROOMY,
    entry_files,
    kv_caches,
    loaded,
    prompt,
)


@contextmanager
def machine(
    folder: Path, bucket: Bucket, model: str = MODEL, max_bytes: int = ROOMY
) -> Iterator[PrefixStore]:
    """A store in a folder of its own that shares a URL with others."""
    url = f"{bucket.url}/prefixes/"
    store = PrefixStore(folder, fingerprint=model, model_name="tiny", max_bytes=max_bytes, url=url)
    try:
        yield store
    finally:
        store.close()


def saved(folder: Path, bucket: Bucket, *prompts: list[int]) -> None:
    with machine(folder, bucket) as store:
        for token_ids in prompts:
            store.save(token_ids, kv_caches(token_ids), 2.0)
    assert store.notes == []


def test_a_second_machine_loads_what_the_first_saved(bucket: Bucket, tmp_path: Path) -> None:
    short, long = prompt(70), prompt(150)
    saved(tmp_path / "one", bucket, short, long)
    assert len(bucket.names()) == 2

    with machine(tmp_path / "two", bucket) as store:
        found = store.find(prompt(200))
        assert found is not None
        assert (found.length, found.seconds_saved) == (150, 2.0)
        assert store.find(prompt(69)) is None
        assert store.find(prompt(200, first=8)) is None
        assert loaded(store, prompt(100)) == short
        assert loaded(store, prompt(200)) == long
    assert store.notes == []
    # From now on they are here too, as are the parts of them.
    assert len(entry_files(tmp_path / "two")) == 2
    bucket.clear()
    with machine(tmp_path / "two", bucket) as store:
        assert loaded(store, prompt(200)) == long
        assert loaded(store, prompt(130)) == prompt(130)


def test_another_model_finds_nothing(bucket: Bucket, tmp_path: Path) -> None:
    saved(tmp_path / "one", bucket, prompt(100))
    with machine(tmp_path / "two", bucket, OTHER_MODEL) as store:
        assert store.find(prompt(100)) is None


def test_what_is_there_is_not_sent_again(bucket: Bucket, tmp_path: Path) -> None:
    saved(tmp_path / "one", bucket, prompt(100))
    (key,) = bucket.names()
    bucket.put("prefixes/notes.txt", b"somebody's")
    bucket.put(f"prefixes/{MODEL}/notes.txt", b"somebody's")
    before = bucket.names()
    saved(tmp_path / "two", bucket, prompt(100))

    assert bucket.names() == before
    assert key in before


def test_a_damaged_one_is_computed_again(bucket: Bucket, tmp_path: Path) -> None:
    saved(tmp_path / "one", bucket, prompt(100))
    (key,) = bucket.names()
    data = bytearray(bucket.get(key))
    data[-1] ^= 1
    bucket.put(key, bytes(data))
    with machine(tmp_path / "two", bucket) as store:
        assert loaded(store, prompt(100)) is None
        assert store.find(prompt(100)) is None
    assert [note.partition(" at ")[0] for note in store.notes] == ["A stored prefix is damaged"]
    assert entry_files(tmp_path / "two") == []


def _put_under_a_wrong_name(bucket: Bucket, tmp_path: Path) -> None:
    """All that is in the bucket then says that it is of `prompt(100)`, and is not."""
    saved(tmp_path / "one", bucket, prompt(100))
    (key,) = bucket.names()
    saved(tmp_path / "one", bucket, prompt(100, first=8))
    (other,) = set(bucket.names()) - {key}
    data = bucket.get(other)
    named = key.partition("-")[0] + "-" + other.partition("-")[2]
    bucket.clear()
    bucket.put(named, data)


def test_one_under_the_name_of_another_is_not_used(bucket: Bucket, tmp_path: Path) -> None:
    _put_under_a_wrong_name(bucket, tmp_path)
    with machine(tmp_path / "two", bucket) as store:
        assert loaded(store, prompt(100)) is None
        assert store.find(prompt(100)) is None
    assert "holds other tokens" in store.notes[0]


def test_one_that_cannot_be_used_hides_no_shorter_one_that_is_here(
    bucket: Bucket, tmp_path: Path
) -> None:
    _put_under_a_wrong_name(bucket, tmp_path)
    saved(tmp_path / "two", bucket, prompt(80))
    with machine(tmp_path / "two", bucket) as store:
        assert loaded(store, prompt(100)) is None
        found = store.find(prompt(100))
        assert found is not None
        assert found.length == 80


def test_one_that_is_gone_by_now_is_computed_again(bucket: Bucket, tmp_path: Path) -> None:
    saved(tmp_path / "one", bucket, prompt(100))
    with machine(tmp_path / "two", bucket) as store:
        bucket.clear()
        assert loaded(store, prompt(100)) is None
        assert store.find(prompt(100)) is None
        store.save(prompt(90), kv_caches(prompt(90)), 1.0)
    assert [note.partition(" at ")[0] for note in store.notes] == ["A stored prefix is gone"]
    assert len(bucket.names()) == 1  # the store itself is as good as before


@pytest.mark.parametrize("broken", ["files_in", "open_binary", "upload"])
def test_a_store_that_fails_costs_a_warning(
    bucket: Bucket, tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "one", bucket, prompt(100))

    def fail(*_: object) -> None:
        raise StoreError(5, "cannot be reached")

    monkeypatch.setattr(elsewhere, broken, fail)
    with machine(tmp_path / "two", bucket) as store:
        assert loaded(store, prompt(100)) == (prompt(100) if broken == "upload" else None)
        for first in (8, 9):
            store.save(prompt(100, first), kv_caches(prompt(100, first)), 1.0)
    assert store.notes == [
        f"Prefixes at {bucket.url}/prefixes/{MODEL}/ are not used any more: cannot be reached"
    ]
    with machine(tmp_path / "two", bucket) as store:
        assert loaded(store, prompt(100, 9)) == prompt(100, 9)


def test_what_has_no_place_here_is_used_all_the_same(bucket: Bucket, tmp_path: Path) -> None:
    saved(tmp_path / "one", bucket, prompt(100))
    with machine(tmp_path / "two", bucket, max_bytes=10) as store:
        assert loaded(store, prompt(100)) == prompt(100)
    assert entry_files(tmp_path / "two") == []
