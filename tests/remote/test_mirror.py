"""Outputs here for what is at a URL: what is brought, and what goes back."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from batchrun.errors import RunError, UsageError
from batchrun.remote import Mirror, borrowed, lent, place, store
from batchrun.remote.store import StoreError
from tests.bucket import Bucket


@pytest.fixture
def mirrored(bucket: Bucket) -> Callable[[str], tuple[Path, Mirror]]:
    """`mirrored(name)`: the output of that name here, with errors beside it, and its mirror."""

    def get(name: str) -> tuple[Path, Mirror]:
        here = place(f"{bucket.url}/out/{name}")
        beside = [here.path.with_name("x.errors.jsonl")]
        return here.path, Mirror(here.path, here.url, beside)

    return get


def test_a_path_is_its_own_place_and_has_no_mirror(tmp_path: Path) -> None:
    here = place(str(tmp_path / "x.parquet"))
    here.path.write_bytes(b"x")
    mirror = Mirror(here.path, here.url, [])
    mirror.fetch()
    mirror.publish()
    mirror.clear()

    assert (here.path, here.url) == (tmp_path / "x.parquet", None)
    assert here.path.read_bytes() == b"x"


def test_the_folder_here_is_private_and_one_for_each_elsewhere(bucket: Bucket) -> None:
    one, same, other = (
        place(f"{bucket.url}/{name}").path for name in ("a/x.parquet", "a/x.jsonl", "b/x.parquet")
    )

    assert stat.S_IMODE(one.parent.stat().st_mode) == 0o700
    assert one.parent == same.parent != other.parent
    assert one.name == "x.parquet"


def test_what_is_there_comes_and_only_what_changed_goes(
    bucket: Bucket, mirrored: Callable[[str], tuple[Path, Mirror]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("out/x.jsonl", b"old")
    bucket.put("out/x.errors.jsonl", b"old errors")
    path, mirror = mirrored("x.jsonl")
    path.write_bytes(b"left by a run that died")
    mirror.fetch()
    assert path.read_bytes() == b"old"

    gone: list[str] = []
    upload = store.upload
    monkeypatch.setattr(store, "upload", lambda path, url: (gone.append(url), upload(path, url)))
    mirror.publish()
    assert gone == []

    path.write_bytes(b"a new one")
    path.with_name("x.errors.jsonl").unlink()
    mirror.publish()
    assert gone == [f"{bucket.url}/out/x.jsonl"]
    assert bucket.names() == ["out/x.jsonl"]
    assert bucket.get("out/x.jsonl") == b"a new one"
    mirror.clear()
    assert list(path.parent.iterdir()) == []


def test_parts_come_and_go_by_themselves(
    bucket: Bucket, mirrored: Callable[[str], tuple[Path, Mirror]]
) -> None:
    for name in ("part-00001.parquet", "part-00002.parquet", "_SUCCESS"):
        bucket.put(f"out/labels/{name}", b"old")
    path, mirror = mirrored("labels/")
    mirror.fetch()
    assert sorted(part.name for part in path.iterdir()) == [
        "part-00001.parquet",
        "part-00002.parquet",
    ]

    (path / "part-00001.parquet").unlink()
    (path / "part-00003.parquet").write_bytes(b"new")
    mirror.publish()
    names = ("_SUCCESS", "part-00002.parquet", "part-00003.parquet")
    assert bucket.names() == [f"out/labels/{name}" for name in names]


def test_what_cannot_go_stays_here(
    bucket: Bucket, mirrored: Callable[[str], tuple[Path, Mirror]]
) -> None:
    path, mirror = mirrored("x.jsonl")
    mirror.fetch()
    path.write_bytes(b"all that there is")
    bucket.delete()
    with pytest.raises(RunError, match=rf"^{bucket.url}/out/x\.jsonl: .*run again.*{path.parent}"):
        mirror.publish()

    assert path.read_bytes() == b"all that there is"


@pytest.mark.parametrize(
    "url", ["https://host/out.parquet", "s3://bucket", "s3://bucket/", "s3:///x", "s3://"]
)
def test_some_urls_hold_no_output(url: str) -> None:
    with pytest.raises(UsageError, match="cannot hold an output"):
        place(url)


def test_files_are_borrowed_and_lent(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"here")
    with borrowed(str(tmp_path / "x")) as path:
        assert path == tmp_path / "x"
    with lent(f"{bucket.url}/deep/x.csv") as path:
        path.write_bytes(b"written")
    with borrowed(f"{bucket.url}/deep/x.csv") as path:
        assert (path.name, path.read_bytes()) == ("x.csv", b"written")
    assert not path.exists()
    with pytest.raises(KeyError), lent(f"{bucket.url}/other.csv") as path:
        path.write_bytes(b"half")
        raise KeyError
    assert bucket.names() == ["deep/x.csv"]
    with pytest.raises(UsageError, match=r"other\.csv: there is no such file"):
        borrowed(f"{bucket.url}/other.csv").__enter__()


def test_a_neighbour_is_enough_where_there_is_one(bucket: Bucket) -> None:
    bucket.put("x.parquet", b"much")
    for there in (False, True):
        with borrowed(f"{bucket.url}/x.parquet", lambda path: path.with_name("x.json")) as path:
            assert path.exists() is not there
            assert path.with_name("x.json").exists() is there
        bucket.put("x.json", b"little")


def test_an_upload_that_breaks_off_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file grows under its name, it does so under another name first."""
    import fsspec

    memory = fsspec.get_filesystem_class("memory")
    memory().pipe_file("memory://bucket/x", b"old")
    (tmp_path / "x").write_bytes(b"new")
    put = memory.put_file

    def breaks(self: object, lpath: str, rpath: str, **options: object) -> None:
        put(self, lpath, rpath, **options)
        raise ConnectionError("reset")

    monkeypatch.setattr(memory, "put_file", breaks)
    with pytest.raises(StoreError, match="reset"):
        store.upload(tmp_path / "x", "memory://bucket/x")

    assert memory().cat_file("memory://bucket/x") == b"old"
    memory().rm("/bucket", recursive=True)
