"""Videos -> frames."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from batchrun.models.processor import Clip
from batchrun.prepare.media import Limits
from batchrun.prepare.media.clip import decode_clip
from batchrun.prepare.media.faults import MediaFault
from tests.prepare.media.builders import encoded, noise, video

LIMITS = Limits()


def decode(path: Path, fps: float = 2.0, limits: Limits = LIMITS) -> Clip:
    return decode_clip(path, fps, limits, lambda nbytes: None)


def fault_of(path: Path, limits: Limits = LIMITS) -> MediaFault:
    with pytest.raises(MediaFault) as caught:
        decode(path, limits=limits)
    return caught.value


def numbers(clip: Clip) -> list[int]:
    """Which frames they are; see `video`."""
    return [round(frame.mean() / 5) for frame in clip.frames]


@pytest.mark.parametrize("kind", ["mp4", "avi", "mkv"])
@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (1, [0]),
        (2, [0, 1]),
        (3, [0, 1, 2]),
        (5, [0, 1, 3, 4]),
        (40, [0, 6, 11, 17, 22, 28, 33, 39]),
    ],
)
def test_frames_are_spread_from_the_first_to_the_last(
    kind: str, count: int, chosen: list[int], tmp_path: Path
) -> None:
    clip = decode(video(tmp_path / f"a.{kind}", count))
    assert clip.frames.shape == (len(chosen), 48, 64, 3)
    assert clip.frames.dtype == np.uint8
    assert np.abs(np.array(numbers(clip)) - chosen).max() <= 1  # codecs lose a little
    assert clip.fps == pytest.approx(len(chosen) * 10 / count)


@pytest.mark.parametrize(("fps", "count"), [(0.001, 4), (2, 8), (5, 20), (10, 40), (1000, 40)])
def test_so_many_frames_a_second_are_taken_and_none_twice(
    fps: float, count: int, tmp_path: Path
) -> None:
    assert len(decode(video(tmp_path / "a.avi", 40), fps).frames) == count


def test_there_are_never_more_frames_than_the_limit(tmp_path: Path) -> None:
    path = video(tmp_path / "a.avi", 200, size=(16, 16))
    assert len(decode(path, 100).frames) == 128
    assert len(decode(path, 100, replace(LIMITS, max_frames=7)).frames) == 7


def test_colours_are_in_the_order_of_rgb(tmp_path: Path) -> None:
    import cv2

    path = tmp_path / "a.avi"
    writer = cv2.VideoWriter(
        str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"MJPG"), 10, (32, 32)
    )
    writer.write(np.full((32, 32, 3), (0, 0, 255), np.uint8))  # red, as OpenCV has it
    writer.release()
    red, green, blue = decode(path).frames[0, 16, 16].tolist()
    assert red > 200
    assert max(green, blue) < 60


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    assert fault_of(tmp_path / "a.mp4").code == "invalid_video"


@pytest.mark.parametrize("kind", ["mp4", "avi", "mkv"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6])
def test_a_file_that_is_cut_off_is_refused(kind: str, share: float, tmp_path: Path) -> None:
    data = video(tmp_path / f"a.{kind}", 40).read_bytes()
    (tmp_path / f"b.{kind}").write_bytes(data[: int(len(data) * share)])
    assert fault_of(tmp_path / f"b.{kind}").code == "invalid_video"


def test_how_much_of_it_there_is_is_said(tmp_path: Path) -> None:
    data = video(tmp_path / "a.mkv", 40).read_bytes()
    (tmp_path / "b.mkv").write_bytes(data[: len(data) // 2])
    assert "ends after 20 of 40 frames" in fault_of(tmp_path / "b.mkv").problem


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/a.ts\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n",
        b"<!DOCTYPE html><html></html>",
        encoded(noise(8, 8)),
    ],
)
def test_lists_of_other_files_and_what_is_no_video_are_refused_unread(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "a.mp4").write_bytes(content)
    assert "is no video that can be read: it begins with" in fault_of(tmp_path / "a.mp4").problem


def test_a_container_without_a_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"\x00\x00\x00\x18ftypisom" + bytes(5000))
    assert fault_of(tmp_path / "a.mp4").code == "invalid_video"


class WithoutPictures:
    """A video whose frames are announced, and none of which can be decoded."""

    def get(self, _: int) -> float:
        return 10.0

    def grab(self) -> bool:
        return True

    def retrieve(self) -> tuple[bool, None]:
        return False, None


def test_a_video_of_which_no_frame_can_be_decoded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = video(tmp_path / "a.avi", 2)
    monkeypatch.setattr(
        "batchrun.prepare.media.clip._capture", lambda _: nullcontext(WithoutPictures())
    )
    assert "without any frame" in fault_of(path).problem


def test_frames_that_are_too_large_are_refused(tmp_path: Path) -> None:
    path = video(tmp_path / "a.avi", 2)
    fault = fault_of(path, replace(LIMITS, image_pixels=64 * 48 - 1))
    assert (fault.code, fault.status) == ("media_too_large", 413)


def test_frames_that_together_are_too_large_are_scaled_down(tmp_path: Path) -> None:
    path, asked = video(tmp_path / "a.avi", 40), []
    limits = replace(LIMITS, clip_pixels=8 * 32 * 24)
    clip = decode_clip(path, 2.0, limits, asked.append)
    assert clip.frames.shape == (8, 24, 32, 3)
    assert asked == [2 * clip.frames.nbytes]
    assert numbers(clip)[0] < numbers(clip)[-1]


def test_the_digest_is_of_frames_and_speed(tmp_path: Path) -> None:
    path = video(tmp_path / "a.avi", 4)
    assert decode(path).digest == decode(path).digest
    assert decode(path).digest != decode(video(tmp_path / "b.avi", 4, rate=5)).digest
    assert decode(path).digest != decode(video(tmp_path / "c.avi", 3)).digest


def test_nothing_is_printed_about_faulty_files(tmp_path: Path) -> None:
    data = video(tmp_path / "a.mp4", 40).read_bytes()
    paths = []
    for length in (100, len(data) // 2, len(data) - 100):
        paths.append(tmp_path / f"{length}.mp4")
        paths[-1].write_bytes(data[:length])
    # In a process of its own: what FFmpeg says is settled when it is first used.
    done = subprocess.run(
        [sys.executable, "-c", _DECODE, *map(str, paths)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_DECODE = """
import sys
from pathlib import Path
from batchrun.prepare.media import Limits
from batchrun.prepare.media.clip import decode_clip
from batchrun.prepare.media.faults import MediaFault
for path in sys.argv[1:]:
    try:
        decode_clip(Path(path), 2.0, Limits(), lambda nbytes: None)
    except MediaFault:
        pass
    else:
        sys.exit(path)
"""
