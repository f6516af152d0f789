"""How large and how slow media may be, so that one row can use up neither memory nor time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes are in bytes, pixels or frames, times in seconds.

    `seconds` is for a download from its first name lookup to its last byte, redirects included.
    `row_bytes` is the decoded media of one row together. Videos have from `min_frames` to
    `max_frames` frames, fewer where they have fewer; frames that together have more than
    `clip_pixels` are scaled down.
    """

    image_bytes: int = 20 * 10**6
    image_pixels: int = 50 * 10**6
    video_bytes: int = 500 * 10**6
    clip_pixels: int = 100 * 10**6
    row_bytes: int = 2**30
    min_frames: int = 4
    max_frames: int = 128
    seconds: float = 30.0
    redirects: int = 5
