"""A video file -> Clip: frames spread evenly over its length.

FFmpeg, which reads the files, also knows lists that name other files and addresses: only what
begins as a video's own container is given to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from batchrun.models.processor import Clip
from batchrun.prepare.media.decoded import clip
from batchrun.prepare.media.faults import MediaFault
from batchrun.prepare.media.limits import Limits

if TYPE_CHECKING:
    from types import ModuleType

Frame = npt.NDArray[np.uint8]

_CODE = "invalid_video"
_NO_FRAME = "is a video without any frame that can be read"
# MP4, QuickTime and 3GP; AVI; Matroska and WebM; MPEG-PS; Ogg; FLV; WMV; GIF.
_STARTS = (
    *((4, name) for name in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),
    (8, b"AVI "),
    (0, b"\x1a\x45\xdf\xa3"),
    (0, b"\x00\x00\x01\xba"),
    (0, b"OggS"),
    (0, b"FLV\x01"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
    (0, b"GIF8"),
)
_TS_PACKET = 188
_MAX_RATE = 1000.0
_ASSUMED_RATE = 25.0
# Containers without an index give their length in seconds, that of the sound where it is longer:
# so many seconds, or this share of the frames, may be missing without the file being cut off.
_SLACK_SECONDS = 2
_SLACK_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class _Header:
    """What a file says of itself: frames, frames a second, and pixels of a frame."""

    total: int
    rate: float
    pixels: int


def decode_clip(path: Path, fps: float, limits: Limits, reserve: Callable[[int], None]) -> Clip:
    """About `fps` frames of each second of the video at `path`; `reserve` is called with the bytes
    that decoding them takes before that is done. Raises MediaFault."""
    _check_start(path)
    header = _read_header(path, limits)
    chosen = _choose(header, fps, limits)
    # Twice: one by one, and then together.
    reserve(2 * 3 * min(len(chosen) * header.pixels, limits.clip_pixels))
    frames = _read(path, chosen, limits)
    if len(frames) < len(chosen):
        header = replace(header, total=_checked_total(path, header))
        frames = _read(path, _choose(header, fps, limits), limits)
    try:
        return clip(np.stack(frames), len(frames) * header.rate / header.total)
    except ValueError as error:
        raise MediaFault(_CODE, "is a video whose frames differ in size") from error


def _check_start(path: Path) -> None:
    with open(path, "rb") as file:
        start = file.read(_TS_PACKET + 1)
    is_stream = start[:1] == start[_TS_PACKET:] == b"G"
    if not is_stream and not any(start.startswith(magic, at) for at, magic in _STARTS):
        beginning = repr(start[:16].decode("ascii", "replace"))
        raise MediaFault(_CODE, f"is no video that can be read: it begins with {beginning}")


def _read_header(path: Path, limits: Limits) -> _Header:
    cv2 = _library()
    with _capture(path) as video:
        total = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        rate = float(video.get(cv2.CAP_PROP_FPS))
        width, height = (
            int(video.get(of)) for of in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        )
    if width * height > limits.image_pixels:
        raise MediaFault(
            "media_too_large",
            f"has frames of {width} x {height} pixels, which is more than"
            f" {limits.image_pixels / 10**6:g} megapixels; make them smaller",
            status=413,
        )
    return _Header(
        total if total > 0 else _counted(path),
        rate if 0 < rate <= _MAX_RATE else _ASSUMED_RATE,
        width * height,
    )


def _counted(path: Path) -> int:
    total = 0
    with _capture(path) as video:
        while video.grab():
            total += 1
    if total == 0:
        raise MediaFault(_CODE, _NO_FRAME)
    return total


def _checked_total(path: Path, header: _Header) -> int:
    """How many frames there really are, where these are fewer than announced."""
    total = _counted(path)
    slack = min(_SLACK_SECONDS * header.rate, _SLACK_SHARE * header.total)
    if header.total - total > slack:
        raise MediaFault(
            _CODE,
            f"is a video that ends after {total:,} of {header.total:,} frames; copy it again",
        )
    return total


def _choose(header: _Header, fps: float, limits: Limits) -> list[int]:
    """The numbers of the frames to take, first and last among them where there are two."""
    wanted = round(header.total / header.rate * fps)
    count = min(max(wanted, limits.min_frames), limits.max_frames, header.total)
    return [int(index) for index in np.linspace(0, header.total - 1, count).round()]


def _read(path: Path, chosen: Sequence[int], limits: Limits) -> list[Frame]:
    """The chosen frames, as far as there are any, but at least one."""
    max_pixels = limits.clip_pixels // len(chosen)
    wanted, frames = set(chosen), []
    # One after the other: what seeking finds depends on the file.
    with _capture(path) as video:
        for index in range(chosen[-1] + 1):
            if not video.grab():
                break
            if index in wanted:
                taken, frame = video.retrieve()
                if not taken:
                    break
                frames.append(_rgb(frame, max_pixels))
    if not frames:
        raise MediaFault(_CODE, _NO_FRAME)
    return frames


def _rgb(frame: Frame, max_pixels: int) -> Frame:
    cv2 = _library()
    height, width = frame.shape[:2]
    shrink = (max_pixels / (height * width)) ** 0.5
    if shrink < 1:
        size = (max(int(width * shrink), 1), max(int(height * shrink), 1))
        frame = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
    converted: Frame = cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
    return converted


@contextmanager
def _capture(path: Path) -> Iterator[Any]:
    cv2 = _library()
    video = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    try:
        if not video.isOpened():
            raise MediaFault(_CODE, "is a damaged video, or of a kind that cannot be read")
        yield video
    except cv2.error as error:
        reason = " ".join(str(error).split())
        raise MediaFault(_CODE, f"is a damaged video: {reason}") from error
    finally:
        video.release()


@cache
def _library() -> ModuleType:
    """OpenCV, which takes its time to load, without its remarks on faulty files."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    import cv2

    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    return cv2
