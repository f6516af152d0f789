"""Images and videos made at run time, and a web server of this machine's own."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import cv2
import numpy as np
from PIL import Image

from batchrun.prepare.media import Reference

Answer = Callable[[BaseHTTPRequestHandler], None]


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """An image that no compression makes small, and that no turn leaves as it is."""
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return Image.fromarray(pixels, mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    target = BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def video(
    path: Path, num_frames: int, *, rate: float = 10, size: tuple[int, int] = (64, 48)
) -> Path:
    """Frame i is all of brightness 5 * i."""
    code = {".mp4": "mp4v", ".avi": "MJPG", ".mkv": "MJPG"}[path.suffix]
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*code), rate, size)
    assert writer.isOpened()
    for number in range(num_frames):
        writer.write(np.full((size[1], size[0], 3), min(5 * number, 255), np.uint8))
    writer.release()
    return path


def image_of(value: str | bytes, root: Path = Path("/nowhere")) -> Reference:
    return Reference("image", value, root, "messages[0].content[0]")


def video_of(value: str | bytes, root: Path = Path("/nowhere")) -> Reference:
    return Reference("video", value, root, "messages[0].content[0]")


class Server:
    """Serves `answers` by path on the loopback; `asked` are the paths asked for."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.port = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def serve(self, path: str, body: bytes, status: int = 200, **headers: str) -> str:
        self.answers[path] = lambda handler: send(handler, body, status, headers)
        return self.url(path)

    def redirect(self, path: str, to: str, status: int = 302) -> str:
        return self.serve(path, b"", status, Location=to)


def send(
    handler: BaseHTTPRequestHandler, body: bytes, status: int, headers: dict[str, str]
) -> None:
    handler.send_response(status)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    for name, value in ({"Content-Length": str(len(body))} | named).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def running() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.path)
            # The client may have had enough.
            with suppress(BrokenPipeError, ConnectionResetError):
                server.answers[self.path](self)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.port = http.server_address[1]
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
