"""What a store is asked, of one in memory and of a real server; and how it fails."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import fsspec
import pytest

from batchrun.errors import UsageError
from batchrun.remote import open_binary, store
from batchrun.remote.store import StoreError
from tests.bucket import Bucket


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


def test_a_missing_file_and_a_missing_bucket_are_said(bucket: Bucket, tmp_path: Path) -> None:
    for url in (f"{bucket.url}/none", "s3://no-such-bucket/none"):
        with pytest.raises(StoreError, match="no such file, folder or bucket") as caught:
            open_binary(url)
        assert caught.value.is_missing
    with pytest.raises(StoreError, match="there is no no-such-bucket; make it first"):
        store.check_reach("s3://no-such-bucket/deep/out.parquet")
    store.check_reach(f"{bucket.url}/deep/out.parquet")
    store.check_reach("memory://no-such-folder/deep/out.parquet")  # which can be made
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


def test_a_full_disk_here_is_not_the_store_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "get_file", full)
    with pytest.raises(StoreError, match=r"^the disk is full"):
        store.download("memory://x", tmp_path / "x")


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
