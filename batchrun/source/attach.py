"""Images and videos in columns of their own -> parts of a row's messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchrun.errors import RowError
from batchrun.source.parts import MediaKind, media_value

Part = dict[str, Any]
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MediaColumns:
    """The columns that `--image` and `--video` name."""

    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.images + self.videos)

    def parts(self, columns: Mapping[str, Any]) -> list[Part]:
        """One part for each image, then for each video, that the row has.

        Null is none, and so are nulls in a list. Raises RowError for a column that the row lacks,
        and for a value that can be no image.
        """
        return [
            *(part for name in self.images for part in _parts(columns, name, "image")),
            *(part for name in self.videos for part in _parts(columns, name, "video")),
        ]

    def others(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of the row that are not media's."""
        return {name: value for name, value in columns.items() if name not in self.names}


def _parts(columns: Mapping[str, Any], name: str, kind: MediaKind) -> Iterator[Part]:
    if name not in columns:
        raise RowError(
            "missing_column",
            f"--{kind}: the row has no column {name}; give null where there is no {kind}",
            param=name,
        )
    value = columns[name]
    for item in value if isinstance(value, list) else [value]:
        if item is not None:
            yield {"type": kind, kind: _checked(kind, name, item)}


def _checked(kind: MediaKind, name: str, value: Any) -> str | bytes:
    try:
        return media_value(kind, value)
    except ValueError as error:
        raise RowError("invalid_request", f"{name} {error}", param=name) from None


def with_media(messages: list[Message], parts: Sequence[Part]) -> list[Message]:
    """Messages with `parts` where they have parts of the same type that name nothing, in order, or
    else first in the first user message.

    Raises ValueError where places and parts differ in number, and where there is no user message.
    """
    # Each kind goes before what is there, so that images end up first.
    for kind in ("video", "image"):
        ours = [part for part in parts if part["type"] == kind]
        places = sum(part == {"type": kind} for part in _all_parts(messages))
        if places and places != len(ours):
            raise ValueError(f"have {places} places for {kind}s, and the row has {len(ours)}")
        messages = _filled(messages, ours) if places else _put_first(messages, ours)
    return messages


def _all_parts(messages: list[Message]) -> Iterator[Any]:
    for message in messages:
        if isinstance(message["content"], list):
            yield from message["content"]


def _filled(messages: list[Message], parts: Sequence[Part]) -> list[Message]:
    left = iter(parts)
    place = {"type": parts[0]["type"]}
    filled = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            content = [next(left) if part == place else part for part in content]
        filled.append(message | {"content": content})
    return filled


def _put_first(messages: list[Message], parts: Sequence[Part]) -> list[Message]:
    if not parts:
        return messages
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise ValueError(f"have no user message for the {parts[0]['type']}")
    content = messages[first]["content"]
    rest = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [
        *messages[:first],
        messages[first] | {"content": [*parts, *rest]},
        *messages[first + 1 :],
    ]
