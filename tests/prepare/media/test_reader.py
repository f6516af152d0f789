"""The same image by every way in is the same picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from batchrun.config import MediaConfig, SourceConfig
from batchrun.models.processor import Clip, Picture
from batchrun.prepare.media import Limits, MediaReader, Reference, without_media
from batchrun.prepare.media.faults import MediaFault
from batchrun.records import Request
from batchrun.source import read_requests
from tests.prepare.media.builders import (
    Server,
    data_url,
    encoded,
    image_of,
    noise,
    running,
    video,
    video_of,
)

READER = MediaReader(MediaConfig(allow_private_hosts=True))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def read(medium: Reference, reader: MediaReader = READER) -> Picture | Clip:
    return reader.read(medium, lambda nbytes: None)


def fault_of(medium: Reference, reader: MediaReader = READER) -> MediaFault:
    with pytest.raises(MediaFault) as caught:
        read(medium, reader)
    return caught.value


def sideways() -> bytes:
    """A JPEG that is to be turned by a quarter."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(noise(40, 24), "JPEG", exif=exif.tobytes())


def test_url_data_url_file_and_bytes_of_a_turned_jpeg_agree(tmp_path: Path, server: Server) -> None:
    data = sideways()
    (tmp_path / "a.jpg").write_bytes(data)
    ways = [
        data,
        data_url(data, "image/jpg"),
        "a.jpg",
        f"file://{tmp_path}/a.jpg",
        server.serve("/a.jpg", data),
    ]
    pictures = [read(image_of(way, tmp_path)) for way in ways]
    assert {picture.digest for picture in pictures} == {pictures[0].digest}
    assert isinstance(pictures[0], Picture)
    assert pictures[0].image.size == (24, 40)


def test_parquet_bytes_structs_and_paths_agree_with_json(tmp_path: Path) -> None:
    data = sideways()
    (tmp_path / "a.jpg").write_bytes(data)
    columns = {
        "plain": [data],
        "struct": [{"bytes": data, "path": "elsewhere.jpg"}],
        "named": [{"bytes": None, "path": "a.jpg"}],
        "several": [[data, None, data]],
        "structs": [[{"bytes": data, "path": None}]],
        "text": ["a.jpg"],
        "none": pa.nulls(1, pa.binary()),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    config = SourceConfig(inputs=(str(path),), prompt="what?", images=tuple(columns))
    (request,) = read_requests(config)
    assert isinstance(request, Request)
    stripped, media = without_media(request, None)
    assert [medium.param for medium in media] == [f"messages[0].content[{i}]" for i in range(7)]
    assert len({read(medium).digest for medium in media}) == 1
    assert stripped.messages == [
        {"role": "user", "content": [{"type": "image"}] * 7 + [{"type": "text", "text": "what?"}]}
    ]


@pytest.mark.parametrize("kind", ["mp4", "avi"])
def test_a_video_is_the_same_by_every_way(kind: str, tmp_path: Path, server: Server) -> None:
    data = video(tmp_path / f"a.{kind}", 12).read_bytes()
    ways = [data, data_url(data, "video/mp4"), f"a.{kind}", server.serve("/v", data)]
    clips = [read(video_of(way, tmp_path)) for way in ways]
    assert {clip.digest for clip in clips} == {clips[0].digest}
    assert isinstance(clips[0], Clip)
    assert clips[0].frames.shape == (4, 48, 64, 3)


def test_no_copy_of_a_video_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = video(tmp_path / "a.avi", 3).read_bytes()
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    read(video_of(data))
    fault_of(video_of(data[:100]))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("of", [image_of, video_of])
@pytest.mark.parametrize("value", [b"\x00", "data:;base64,AA==", "one.bin", "{url}"])
def test_one_wrong_byte_is_refused_by_every_way(
    of: type, value: str | bytes, tmp_path: Path, server: Server
) -> None:
    (tmp_path / "one.bin").write_bytes(b"\x00")
    url = server.serve("/one", b"\x00")
    fault = fault_of(of(value.replace("{url}", url) if isinstance(value, str) else value, tmp_path))
    assert fault.code in ("invalid_image", "invalid_video")


@pytest.mark.parametrize("of", [image_of, video_of])
def test_no_bytes_at_all_are_refused(of: type, server: Server) -> None:
    assert fault_of(of(server.serve("/empty", b""))).problem.startswith("is empty")


def test_every_way_keeps_to_the_limit_of_bytes(tmp_path: Path, server: Server) -> None:
    data = encoded(noise(30, 30))
    (tmp_path / "a.png").write_bytes(data)
    small = MediaReader(
        MediaConfig(allow_private_hosts=True), Limits(image_bytes=len(data) - 1, video_bytes=9)
    )
    for value in (data, data_url(data), "a.png", server.serve("/a.png", data)):
        assert fault_of(image_of(value, tmp_path), small).code == "media_too_large"
        assert fault_of(video_of(value, tmp_path), small).code == "media_too_large"


@pytest.mark.parametrize("url", ["s3://bucket/a.png", "ftp://host/a.png", "hf://a/b"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    assert "use https" in fault_of(image_of(url)).problem


def test_private_hosts_are_refused_unless_allowed(server: Server) -> None:
    url = server.serve("/a.png", encoded(noise(9, 9)))
    assert fault_of(image_of(url), MediaReader()).code == "media_host_refused"
    assert read(image_of(url))


def test_identities_are_equal_for_what_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    same = [image_of("a.png", tmp_path), image_of(str(path), tmp_path)]
    assert READER.identity(same[0]) == READER.identity(same[1])
    assert READER.identity(same[0]) != READER.identity(video_of("a.png", tmp_path))
    assert READER.identity(image_of(b"1")) == READER.identity(image_of(bytes([49])))
    assert READER.identity(image_of(b"1")) != READER.identity(image_of(b"2"))
    with pytest.raises(MediaFault):
        READER.identity(image_of("none.png", tmp_path))


def test_frames_a_second_are_as_asked_for(tmp_path: Path) -> None:
    video(tmp_path / "a.avi", 40)
    clip = read(video_of("a.avi", tmp_path), MediaReader(MediaConfig(video_fps=5.0)))
    assert isinstance(clip, Clip)
    assert len(clip.frames) == 20
    assert np.diff([frame.mean() for frame in clip.frames]).min() > 0
