"""Objects of a store that rows name: only those below a media root that is a URL.

Whoever writes a row chooses what it names: that must lead to no other store, and out of no folder.
"""

from __future__ import annotations

import errno
import io
from typing import IO

from batchrun.prepare.media.dataurl import too_large
from batchrun.prepare.media.faults import MediaFault
from batchrun.remote import StoreError, is_web, open_binary, within

_CHUNK = 2**20


def url_below(value: str, root: str) -> str:
    """The URL of what a row names, by its URL or by its path from `root`, a URL with a slash at its
    end. Raises MediaFault for anything that is not below it."""
    if is_web(root):
        raise _refused(value, "the input is on the web; give the whole URL, or a --media-root")
    inside = value.removeprefix(root)
    if "\\" in inside or not {"", ".", ".."}.isdisjoint(inside.split("/")):
        raise _refused(value, f"that is outside of {root}; --media-root names another folder")
    return root + inside


def fetch(url: str, target: IO[bytes], max_bytes: int, seconds: float) -> None:
    """Write what is at `url` to `target`. Raises MediaFault."""
    try:
        within(seconds, lambda: _copy(url, target, max_bytes))
    except StoreError as error:
        raise _fault(url, error) from error


def _copy(url: str, target: IO[bytes], max_bytes: int) -> None:
    with open_binary(url, _CHUNK) as stream:
        if stream.seek(0, io.SEEK_END) > max_bytes:
            raise too_large(max_bytes)
        stream.seek(0)
        while chunk := stream.read(_CHUNK):
            target.write(chunk)


def _refused(value: str, why: str) -> MediaFault:
    return MediaFault("media_path_refused", f"names {value[:200]!r}, and {why}", status=403)


def _fault(url: str, error: StoreError) -> MediaFault:
    if error.is_missing:
        problem = "no such file; paths count from the input's folder, or from --media-root"
        return MediaFault("media_not_found", f"names {url}: {problem}", status=404)
    if error.errno == errno.ETIMEDOUT:
        return MediaFault("media_timeout", f"names {url}, which {error}", status=408)
    return MediaFault("media_unreachable", f"names {url}: {error}")
