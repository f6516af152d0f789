"""A time by which something must be done, and sockets that keep to it."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from typing import Any

Clock = Callable[[], float]


class Deadline:
    """`seconds` from now, by `clock`."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic):
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds to go, more than 0. Raises TimeoutError when there are none."""
        left = self._end - self._clock()
        if left <= 0:
            raise TimeoutError("out of time")
        return left


class TimedSocket:
    """What `http.client` needs of a socket, each call with the time that is left.

    A socket's own timeout begins anew with every byte that arrives: a server that sends one now and
    then would never be given up.
    """

    def __init__(self, sock: socket.socket, deadline: Deadline):
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        if mode != "rb":
            raise ValueError(mode)
        return io.BufferedReader(_Received(self._sock, self._deadline))

    def close(self) -> None:
        self._sock.close()


class _Received(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: Deadline):
        super().__init__()
        self._sock = sock
        self._deadline = deadline
        # As long as this is open the socket stays open, though it is closed itself.
        self._stream = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._sock.settimeout(self._deadline.left())
        return self._stream.readinto(buffer) or 0

    def close(self) -> None:
        self._stream.close()
        super().close()
