"""Media in a store: read below the media root, and nowhere else whatever a row says."""

from __future__ import annotations

import io
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchrun.config import MediaConfig
from batchrun.models.processor import Clip, Picture
from batchrun.prepare.media import Limits, MediaReader, Reference, storefile, without_media
from batchrun.prepare.media.faults import MediaFault
from batchrun.prepare.media.storefile import fetch, url_below
from batchrun.records import Request, Row, Sampling
from tests.bucket import Bucket
from tests.prepare.media.builders import encoded, noise, video

ROOT = "s3://bucket/images/"


def read(value: str, root: str | Path, **limits: float) -> Picture | Clip:
    kind = "video" if value.endswith(".mp4") else "image"
    medium = Reference(kind, value, root, "messages[0].content[0]")
    reader = MediaReader(MediaConfig(), Limits(**limits))  # type: ignore[arg-type]
    reader.identity(medium)
    return reader.read(medium, lambda nbytes: None)


def fault(value: str, root: str | Path, **limits: float) -> MediaFault:
    with pytest.raises(MediaFault) as caught:
        read(value, root, **limits)
    return caught.value


def test_an_object_is_the_picture_that_a_file_is(bucket: Bucket, tmp_path: Path) -> None:
    data = encoded(noise(40, 24), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    root = f"{bucket.url}/images/"
    bucket.put("images/deep/a.png", data)
    pictures = [
        read("a.png", tmp_path),
        read("deep/a.png", root),
        read(f"{root}deep/a.png", root),
    ]

    assert len({picture.digest for picture in pictures}) == 1


def test_a_video_is_read_too(bucket: Bucket, tmp_path: Path) -> None:
    path = video(tmp_path / "a.mp4", 8)
    bucket.put("images/a.mp4", path.read_bytes())

    assert read("a.mp4", f"{bucket.url}/images/").digest == read("a.mp4", tmp_path).digest


OUTSIDE = [
    "s3://bucket/other/a.png",
    "s3://bucket/images",
    "s3://bucket/images/",
    "s3://bucket/images/../other/a.png",
    "s3://bucket/imagesother/a.png",
    "s3://other/images/a.png",
    "S3://bucket/images/a.png",
    "s3a://bucket/images/a.png",
    "gs://bucket/images/a.png",
    "memory://bucket/images/a.png",
    "file:///etc/passwd",
    "/etc/passwd",
    "../other/a.png",
    "a/../../other/a.png",
    "./a.png",
    "..\\other",
    "zip://a.png::file:///etc/a.zip",
    "simplecache::file:///etc/passwd",
]


@pytest.mark.parametrize("value", OUTSIDE)
def test_nothing_outside_of_the_root_is_opened(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storefile, "open_binary", None)
    found = fault(value, ROOT)

    assert (found.code, found.status) == ("media_path_refused", 403)
    assert "outside of s3://bucket/images/" in found.problem


@pytest.mark.parametrize("value", ["s3://bucket/images/a.png", "memory://x/a.png", "hf://a/b/c"])
def test_a_store_is_only_followed_below_a_root_in_it(value: str, tmp_path: Path) -> None:
    found = fault(value, tmp_path)

    assert found.code == "invalid_url"
    assert "--media-root" in found.problem


@given(st.text(max_size=40), st.booleans())
def test_whatever_a_row_says_is_refused_or_below_the_root(text: str, is_whole: bool) -> None:
    try:
        url = url_below(f"{ROOT}{text}" if is_whole else text, ROOT)
    except MediaFault:
        return
    assert url.startswith(ROOT)
    assert not {"", ".", ".."} & set(url.removeprefix(ROOT).split("/"))


@given(st.text(max_size=40))
def test_what_a_row_says_does_not_choose_the_store(text: str) -> None:
    """Some drivers take options from a URL: here they are those of the root."""
    import fsspec

    from batchrun.remote import store

    memory = fsspec.get_filesystem_class("memory")
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            memory, "_get_kwargs_from_urls", staticmethod(lambda url: asked.append(url) or {})
        )
        try:
            url = url_below(text, "memory://bucket/images/")
        except MediaFault:
            return
        store.kind(url)
    assert asked == ["memory://bucket/"]


def test_the_limits_hold(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"{bucket.url}/images/"
    bucket.put("images/a.png", encoded(noise(40, 24), "PNG"))
    assert fault("a.png", root, image_bytes=1000).code == "media_too_large"
    assert fault("a.png", root, image_pixels=40 * 24 - 1).code == "media_too_large"
    assert fault("none.png", root).code == "media_not_found"
    bucket.put("images/empty.png", b"")
    assert fault("empty.png", root).code == "invalid_image"

    for_ever = Event()
    monkeypatch.setattr(storefile, "_copy", lambda *_: for_ever.wait())
    assert fault("a.png", root, seconds=0.01).code == "media_timeout"
    for_ever.set()


def test_what_is_too_large_is_not_read(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    url = bucket.put("images/large.bin", bytes(10**6))
    target = io.BytesIO()
    with pytest.raises(MediaFault, match="larger"):
        fetch(url, target, 10**6 - 1, 60)
    assert target.getvalue() == b""


def test_rows_name_files_from_their_input_on(bucket: Bucket) -> None:
    def root_of(file: str, root: Path | str | None = None) -> Path | str:
        parts = [{"type": "image_url", "image_url": {"url": "a.png"}}]
        messages = [{"role": "user", "content": parts}]
        request = Request(Row(0, file, 1, None, {}), Sampling(), messages=messages)
        (medium,) = without_media(request, root)[1]
        return medium.root

    assert root_of("s3://bucket/in/rows.jsonl") == "s3://bucket/in/"
    assert root_of("s3://bucket/in/rows.jsonl", Path("/images")) == Path("/images")
    assert root_of("/data/rows.jsonl", ROOT) == ROOT
    web = root_of("https://host/in/rows.jsonl?abc")
    assert fault("a.png", web).code == "media_path_refused"


def test_the_fault_of_a_store_names_the_url(bucket: Bucket) -> None:
    assert f"{bucket.url}/x/a.png" in fault("a.png", f"{bucket.url}/x/").problem
