"""Which images and videos a request names, and the request without them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from batchrun.prepare.media.reader import Reference
from batchrun.records import Request
from batchrun.remote import is_url, parent
from batchrun.source.files import is_stream
from batchrun.source.parts import MEDIA_PARTS, media_source


def without_media(request: Request, root: Path | str | None) -> tuple[Request, list[Reference]]:
    """The request with parts that say only {"type": "image"} or {"type": "video"}, and what these
    named, in order.

    Files are below `root`, a folder here or the URL of one, or else below the folder of the file
    that the row is in.
    """
    if not request.is_chat:
        return request, []
    media: list[Reference] = []
    folder = root or _folder(request.row.file)
    messages = [
        _stripped(message, f"messages[{index}]", folder, media)
        for index, message in enumerate(request.messages or [])
    ]
    return (replace(request, messages=messages), media) if media else (request, [])


def _stripped(
    message: dict[str, Any], where: str, root: Path | str, media: list[Reference]
) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return message
    parts = []
    for index, part in enumerate(content):
        if part["type"] in MEDIA_PARTS:
            kind, value = media_source(part)
            media.append(Reference(kind, value, root, f"{where}.content[{index}]"))
            part = {"type": kind}
        parts.append(part)
    return {**message, "content": parts}


@lru_cache(maxsize=64)
def _folder(file: str) -> Path | str:
    if is_url(file):
        return parent(file)
    return Path.cwd() if is_stream(file) else Path(file).absolute().parent
