"""Objects of a store that rows name: only those below a media root that is a URL.

Whoever writes a row chooses what it names: that must lead to no other store, and out of no folder.
"""

from __future__ import annotations

import io
from concurrent.futures import Future
from threading import Thread
from typing import IO

from batchrun.prepare.media.dataurl import too_large
from batchrun.prepare.media.faults import MediaFault
from batchrun.prepare.media.workers import settle
from batchrun.remote import StoreError, is_web, open_binary

_CHUNK = 2**20


def url_below(value: str, root: str) -> str:
    """The URL of what a row names, by its URL or by its path from `root`, a URL with a slash at its
    end. Raises MediaFault for anything that is not below it."""
    if is_web(root):
        raise MediaFault(
            "media_path_refused",
            f"names {value[:200]!r}, and the input is on the web; give the whole URL, or a"
            " --media-root",
            status=403,
        )
    inside = value.removeprefix(root)
    steps = inside.split("/")
    if "\\" in inside or not {"", ".", ".."}.isdisjoint(steps):
        raise MediaFault(
            "media_path_refused",
            f"names {value[:200]!r}, which is outside of {root}; --media-root names another folder",
            status=403,
        )
    return root + inside


def fetch(url: str, target: IO[bytes], max_bytes: int, seconds: float) -> None:
    """Write what is at `url` to `target`. Raises MediaFault.

    A driver that does not answer in time is left behind in its thread.
    """
    copied: Future[None] = Future()
    copy = (copied, lambda: _copy(url, target, max_bytes))
    Thread(target=settle, args=copy, name="batchrun-store", daemon=True).start()
    try:
        copied.result(seconds)
    except TimeoutError as error:
        raise MediaFault(
            "media_timeout",
            f"was not fetched within {seconds:g} seconds; try again, or give it as a file",
            status=408,
        ) from error
    except StoreError as error:
        if error.is_missing:
            problem = "no such file; paths count from the input's folder, or from --media-root"
            raise MediaFault("media_not_found", f"names {url}: {problem}", status=404) from error
        raise MediaFault("media_unreachable", f"names {url}: {error}") from error


def _copy(url: str, target: IO[bytes], max_bytes: int) -> None:
    with open_binary(url, _CHUNK) as stream:
        if stream.seek(0, io.SEEK_END) > max_bytes:
            raise too_large(max_bytes)
        stream.seek(0)
        while chunk := stream.read(_CHUNK):
            target.write(chunk)
