"""Files elsewhere read bit by bit, as files here are."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from batchrun.remote import StoreError, open_binary, store
from tests.bucket import Bucket


class _Plain(SimpleHTTPRequestHandler):
    """Knows nothing of ranges: every answer is the whole file."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def web(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Plain, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_file_is_read_like_one_here(root: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "data").write_bytes(data)
    store.upload(tmp_path / "data", f"{root}/data")
    for path in (str(tmp_path / "data"), f"{root}/data"):
        with open_binary(path, 100) as file:
            assert file.peek(2)[:2] == data[:2]
            assert file.read(1000) == data[:1000]
            file.seek(-5, io.SEEK_END)
            assert file.read() == data[-5:]


def test_only_what_is_asked_for_is_read(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    asked: list[int] = []
    fetch = s3fs.core.S3File._fetch_range

    def count(file: s3fs.core.S3File, start: int, end: int) -> bytes:
        asked.append(end - start)
        return bytes(fetch(file, start, end))

    monkeypatch.setattr(s3fs.core.S3File, "_fetch_range", count)
    url = bucket.put("large", bytes(10**6))
    with open_binary(url, 1000) as file:
        file.read(10)
        file.seek(500_000)
        file.read(10)

    assert asked == [1000, 1000]


def test_an_error_while_reading_is_said_too(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_binary(f"{root}/in/a.jsonl", 2) as file:
        file.read(1)
        monkeypatch.setattr(file.raw._file, "readinto", None, raising=False)
        with pytest.raises(StoreError, match="cannot be reached"):
            file.read(5)


def test_a_web_server_that_cannot_begin_in_the_middle_will_do(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(range(256)) * 40)
    with web(tmp_path) as root, open_binary(f"{root}/data", 100) as file:
        assert file.read(3) == b"\0\1\2"
        file.seek(-2, io.SEEK_END)
        assert file.read() == b"\xfe\xff"


def test_a_web_server_that_can_is_asked_for_parts(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("data", bytes(range(256)) * 40)
    with open_binary(bucket.signed("data"), 100) as file:
        file.seek(-2, io.SEEK_END)
        assert file.read() == b"\xfe\xff"
        assert file.seek(0) == 0
        assert file.read(3) == b"\0\1\2"
