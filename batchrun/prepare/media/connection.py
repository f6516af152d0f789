"""One request to an address that was checked, for a host that goes by its name."""

from __future__ import annotations

import socket
import ssl
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import cast
from urllib.parse import SplitResult, quote

from batchrun.prepare.media.deadline import Deadline, TimedSocket

_HEADERS = {
    "User-Agent": "batchrun",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Connection": "close",
}
# What a path may hold as it is; the rest, as spaces and letters with accents, is escaped.
_PLAIN = "/%:=&?~#+!$,;'@()*[]"


class PinnedConnection(HTTPConnection):
    """A connection for `url` to one of `addresses`, the first that takes it.

    The certificate must be the host's own all the same. No proxy is used, whatever the environment
    says: it would look the name up again.
    """

    def __init__(self, url: SplitResult, port: int, addresses: list[str], deadline: Deadline):
        super().__init__(url.hostname or "", port)
        self._url = url
        self._addresses = addresses
        self._deadline = deadline

    def connect(self) -> None:
        sock = self._connected()
        try:
            if self._url.scheme == "https":
                sock.settimeout(self._deadline.left())
                sock = _tls().wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise
        self.sock = cast(socket.socket, TimedSocket(sock, self._deadline))

    def get(self) -> HTTPResponse:
        """The response, its body still to be read. Raises OSError, HTTPException, ValueError."""
        path = quote(self._url.path or "/", safe=_PLAIN)
        query = f"?{quote(self._url.query, safe=_PLAIN)}" if self._url.query else ""
        self.request("GET", path + query, headers=_HEADERS)
        return self.getresponse()

    def _connected(self) -> socket.socket:
        refused: OSError | None = None
        for address in self._addresses:
            try:
                return socket.create_connection((address, self.port), self._deadline.left())
            except TimeoutError:
                raise
            except OSError as error:
                refused = error
        raise refused or HTTPException("the host has no address")


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
