"""http(s) URLs -> bytes, within limits, from public addresses only."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from string import punctuation
from typing import IO
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from batchrun.prepare.media.addresses import Resolve, checked_addresses, resolve
from batchrun.prepare.media.connection import PinnedConnection
from batchrun.prepare.media.dataurl import too_large
from batchrun.prepare.media.deadline import Clock, Deadline
from batchrun.prepare.media.faults import MediaFault
from batchrun.prepare.media.limits import Limits

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK = 2**16
_UNREACHABLE = "media_unreachable"


def is_web_url(value: str) -> bool:
    return value[:8].lower().startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True)
class Downloader:
    """`any_host` lets addresses be private. `resolve` and `clock` are the machine's own but in
    tests."""

    limits: Limits
    any_host: bool = False
    resolve: Resolve = resolve
    clock: Clock = time.monotonic

    def fetch(self, url: str, target: IO[bytes], max_bytes: int) -> None:
        """Write what is at `url` to `target`. Raises MediaFault."""
        deadline = Deadline(self.limits.seconds, self.clock)
        try:
            for _ in range(self.limits.redirects + 1):
                moved = self._get(url, target, max_bytes, deadline)
                if moved is None:
                    return
                url = urljoin(url, moved)
        except TimeoutError as error:
            seconds = f"{self.limits.seconds:g} seconds"
            raise MediaFault(
                "media_timeout",
                f"was not fetched within {seconds}; try again, or give it as a file",
                status=408,
            ) from error
        except (OSError, HTTPException, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise MediaFault(_UNREACHABLE, f"cannot be fetched: {reason}") from error
        raise MediaFault(_UNREACHABLE, f"is redirected more than {self.limits.redirects} times")

    def _get(self, url: str, target: IO[bytes], max_bytes: int, deadline: Deadline) -> str | None:
        """Where it moved to, or None when it is in `target`."""
        parts = _split(url)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        addresses = checked_addresses(host, port, self.resolve, any_host=self.any_host)
        connection = PinnedConnection(parts, port, addresses, deadline)
        with closing(connection), closing(connection.get()) as response:
            location = response.getheader("Location")
            if response.status in _REDIRECTS and location:
                # Browsers send the bytes of letters with accents on as they came.
                return quote(location, safe=punctuation, encoding="iso-8859-1")
            _check(response, max_bytes)
            _save(response, target, max_bytes)
        return None


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise MediaFault("invalid_url", f"is not a valid URL: {error}") from error
    if not good:
        raise MediaFault("invalid_url", f"leads to {url[:100]!r}; use a http or https URL")
    if parts.username is not None:
        raise MediaFault("invalid_url", "has a user's name in its URL, which is not supported")
    return parts


def _check(response: HTTPResponse, max_bytes: int) -> None:
    if response.status != 200:
        answer = f"{response.status} {response.reason}".strip()
        raise MediaFault("media_not_found", f"cannot be fetched: the server answers {answer}")
    encoding = response.getheader("Content-Encoding", "identity")
    if encoding != "identity":
        raise MediaFault(_UNREACHABLE, f"cannot be fetched: the server sends it as {encoding}")
    if response.length is not None and response.length > max_bytes:
        raise too_large(max_bytes)


def _save(response: HTTPResponse, target: IO[bytes], max_bytes: int) -> None:
    announced, received = response.length, 0
    # One read of the socket at a time, so that slow ones are noticed.
    while received != announced and (chunk := response.read1(_CHUNK)):
        received += len(chunk)
        if received > max_bytes:
            raise too_large(max_bytes)
        target.write(chunk)
    if announced is not None and received < announced:
        raise MediaFault(
            _UNREACHABLE,
            f"cannot be fetched: the server sent {received:,} of {announced:,} bytes",
        )
