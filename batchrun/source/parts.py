"""The parts of a message's content: which kinds there are, and what a media part names.

What is named is neither fetched nor looked at.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from batchrun.source.fields import shown

# What is text among the parts of a message, by OpenAI's names.
TEXT_PARTS = ("text", "input_text", "output_text")
MediaKind = Literal["image", "video"]

# Type of part -> what it is, and the fields that may name it: OpenAI's, Qwen's and those of
# Hugging Face's templates.
_MEDIA: dict[str, tuple[MediaKind, tuple[str, ...]]] = {
    "image_url": ("image", ("image_url",)),
    "input_image": ("image", ("image_url",)),
    "image": ("image", ("image", "url", "path")),
    "video_url": ("video", ("video_url",)),
    "video": ("video", ("video", "url", "path")),
}
MEDIA_PARTS = tuple(_MEDIA)


class MediaSource(NamedTuple):
    """What a part or a column names: a URL, a data URL or a path; or the file's bytes."""

    kind: MediaKind
    value: str | bytes


def media_source(part: dict[str, Any]) -> MediaSource:
    """What a part whose type is one of MEDIA_PARTS names.

    Raises ValueError with the problem, worded to follow the part's name.
    """
    kind, fields = _MEDIA[part["type"]]
    given = [name for name in fields if part.get(name) is not None]
    if not given:
        raise ValueError(f"names no {kind}; give it in {fields[0]}")
    if len(given) > 1:
        raise ValueError(f"has both {given[0]} and {given[1]}; keep one")
    return MediaSource(kind, media_value(kind, part[given[0]]))


def is_placeholder(part: Any) -> bool:
    """Whether a part says only where an image or a video belongs, as in data sets whose rows have
    messages and a column of images."""
    return part in ({"type": "image"}, {"type": "video"})


def media_value(kind: MediaKind, value: Any) -> str | bytes:
    """A file as a string or bytes, from one of these, OpenAI's {url}, or {bytes, path}, which is
    Hugging Face's. Raises ValueError as `media_source` does."""
    if isinstance(value, dict):
        # In the order of what is nearest: the path that comes with bytes is only their name.
        inner = next((value[key] for key in ("bytes", "url", "path") if value.get(key)), "")
        if isinstance(inner, dict):
            inner = ""
        return media_value(kind, inner)
    if not isinstance(value, str | bytes):
        raise ValueError(f"must be a URL, a path or bytes for its {kind}, not {shown(value)}")
    if not value or (isinstance(value, str) and not value.strip()):
        raise ValueError(f"has an empty {kind}; give a URL, a path or bytes")
    return value.strip() if isinstance(value, str) else value
