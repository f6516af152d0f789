"""What a store is asked, of one in memory and of a real server; and how it fails."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from batchrun.errors import UsageError
from batchrun.remote import store, within
from batchrun.remote.store import StoreError
from tests.bucket import Bucket


@pytest.fixture(params=["memory", "s3"])
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    """A folder with a few files."""
    if request.param == "s3":
        root = f"{request.getfixturevalue('bucket').url}/root"
    else:
        root = "memory://bucket/root"
    for name in ("in/b.jsonl", "in/a.jsonl", "in/deep/c.jsonl", "in/[1].csv"):
        fsspec.filesystem(request.param).pipe_file(f"{root}/{name}", name.encode())
    yield root
    if request.param == "memory":
        fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_it_says_what_there_is(root: str) -> None:
    kinds = [store.kind(f"{root}/{name}") for name in ("in", "in/a.jsonl", "in/[1].csv", "none")]

    assert kinds == ["folder", "file", "file", None]


def test_files_of_a_folder_come_sorted_and_without_what_is_below(root: str) -> None:
    found = store.files_in(f"{root}/in/")

    assert found == [f"{root}/in/{name}" for name in ("[1].csv", "a.jsonl", "b.jsonl")]
    assert store.files_in(f"{root}/none") == []


def test_globs_come_sorted(root: str) -> None:
    assert store.matching(f"{root}/in/?.jsonl") == [f"{root}/in/a.jsonl", f"{root}/in/b.jsonl"]
    assert store.matching(f"{root}/**/c.jsonl") == [f"{root}/in/deep/c.jsonl"]
    assert store.matching(f"{root}/none*") == []


def test_what_is_new_is_seen_at_once(root: str, tmp_path: Path) -> None:
    before = store.files_in(f"{root}/in")
    (tmp_path / "new").write_bytes(b"new")
    store.upload(tmp_path / "new", f"{root}/in/z.jsonl")

    assert store.kind(f"{root}/in/z.jsonl") == "file"
    assert store.files_in(f"{root}/in") == [*before, f"{root}/in/z.jsonl"]
    store.remove(f"{root}/in/z.jsonl")
    assert store.kind(f"{root}/in/z.jsonl") is None


def test_an_upload_replaces_and_leaves_nothing_else(root: str, tmp_path: Path) -> None:
    before = store.files_in(f"{root}/in")
    (tmp_path / "new").write_bytes(b"new")
    store.upload(tmp_path / "new", f"{root}/in/a.jsonl")
    store.download(f"{root}/in/a.jsonl", tmp_path / "back")

    assert (tmp_path / "back").read_bytes() == b"new"
    assert store.files_in(f"{root}/in") == before


def test_a_file_is_read_like_one_here(root: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "data").write_bytes(data)
    store.upload(tmp_path / "data", f"{root}/data")
    for path in (str(tmp_path / "data"), f"{root}/data"):
        with store.open_binary(path, 100) as file:
            assert file.peek(2)[:2] == data[:2]
            assert file.read(1000) == data[:1000]
            file.seek(-5, io.SEEK_END)
            assert file.read() == data[-5:]


def test_only_what_is_asked_for_is_read(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    asked: list[int] = []
    fetch = s3fs.core.S3File._fetch_range

    def count(file: s3fs.core.S3File, start: int, end: int) -> bytes:
        asked.append(end - start)
        return bytes(fetch(file, start, end))

    monkeypatch.setattr(s3fs.core.S3File, "_fetch_range", count)
    url = bucket.put("large", bytes(10**6))
    with store.open_binary(url, 1000) as file:
        file.read(10)
        file.seek(500_000)
        file.read(10)

    assert asked == [1000, 1000]


def test_a_missing_file_and_a_missing_bucket_are_said(bucket: Bucket, tmp_path: Path) -> None:
    for url in (f"{bucket.url}/none", "s3://no-such-bucket/none"):
        with pytest.raises(StoreError, match="no such file, folder or bucket") as caught:
            store.open_binary(url)
        assert caught.value.is_missing
    with pytest.raises(StoreError, match="there is no no-such-bucket; make it first"):
        store.check_reach("s3://no-such-bucket/deep/out.parquet")
    store.check_reach(f"{bucket.url}/deep/out.parquet")
    (tmp_path / "new").write_bytes(b"new")
    with pytest.raises(StoreError, match="bucket"):
        store.upload(tmp_path / "new", "s3://no-such-bucket/new")


def test_a_driver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(
        UsageError, match=r'gs://b/x: needs a driver: pip install "batchrun\[gcs\]"'
    ):
        store.kind("gs://b/x")
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(UsageError, match="az://b/x: Install adlfs"):
        store.kind("az://b/x")
    with pytest.raises(UsageError, match="no store is known that odd:// names"):
        store.kind("odd://b/x")


def test_whatever_a_driver_raises_is_one_line_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("no\nroute to https://me:pass@host/x?sig=abc")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "info", fail)
    with pytest.raises(StoreError) as caught:
        store.kind("memory://x")

    text = str(caught.value)
    assert "cannot be reached" in text
    assert "see the network and the credentials" in text
    assert "\n" not in text
    assert not any(secret in text for secret in ("pass", "sig", "abc"))


def test_an_error_while_reading_is_said_too(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open_binary(f"{root}/in/a.jsonl", 2) as file:
        file.read(1)
        monkeypatch.setattr(file.raw._file, "readinto", None, raising=False)
        with pytest.raises(StoreError, match="cannot be reached"):
            file.read(5)


def test_a_store_that_does_not_answer_is_left() -> None:
    from threading import Event

    for_ever = Event()
    with pytest.raises(StoreError, match=r"within 0\.01 seconds"):
        within(0.01, for_ever.wait)
    for_ever.set()
    assert within(60, lambda: 5) == 5
    with pytest.raises(KeyError):
        within(60, lambda: {}["x"])
