"""Downloads from a server on this machine: limits, redirects, deadlines and lies."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from itertools import count
from typing import Any

import pytest

from batchrun.prepare.media import Limits, addresses, connection
from batchrun.prepare.media.download import Downloader
from batchrun.prepare.media.faults import MediaFault
from tests.prepare.media.builders import Server, running

LIMITS = Limits()
BODY = bytes(range(256)) * 20


@pytest.fixture(scope="module")
def module_server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def server(module_server: Server) -> Server:
    module_server.answers.clear()
    module_server.asked.clear()
    return module_server


def fetch(url: str, downloader: Downloader | None = None, max_bytes: int = 10**6) -> bytes:
    target = BytesIO()
    (downloader or Downloader(LIMITS, any_host=True)).fetch(url, target, max_bytes)
    return target.getvalue()


def fault_of(url: str, downloader: Downloader | None = None, max_bytes: int = 10**6) -> MediaFault:
    with pytest.raises(MediaFault) as caught:
        fetch(url, downloader, max_bytes)
    return caught.value


def ticking(step: float) -> Downloader:
    """One whose clock goes on by `step` seconds whenever it is looked at."""
    times = count(0.0, step)
    return Downloader(LIMITS, any_host=True, clock=lambda: next(times))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Names with the address of each; of these only 127.0.0.1 counts as public."""
    known = {"public.test": "127.0.0.1", "inside.test": "10.0.0.1"}
    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.1")
    return known


def of_names(names: dict[str, str]) -> Downloader:
    return Downloader(LIMITS, resolve=lambda host, port: [names.get(host, host)])


def test_what_the_server_sends_arrives(server: Server) -> None:
    assert fetch(server.serve("/a.png", BODY)) == BODY


def test_a_body_in_chunks_arrives(server: Server) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for start in (0, 100):
            handler.wfile.write(b"64\r\n" + BODY[start : start + 100] + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")

    server.answers["/a"] = answer
    assert fetch(server.url("/a")) == BODY[:200]


def test_a_path_with_spaces_and_accents_is_escaped(server: Server) -> None:
    server.serve("/a%20%C3%A9.png?q=1&r=%20", BODY)
    assert fetch(server.url("/a é.png?q=1&r=%20")) == BODY


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_also_by_a_relative_path(server: Server, status: int) -> None:
    server.serve("/to/b.png", BODY)
    assert fetch(server.redirect("/from", "to/b.png", status)) == BODY


def test_a_redirect_with_bare_accents_keeps_their_bytes(server: Server) -> None:
    server.serve("/f%C3%BCr%20dich.png", BODY)
    assert fetch(server.redirect("/a", "/für dich.png".encode().decode("iso-8859-1"))) == BODY


def test_five_redirects_are_followed_and_no_more(server: Server) -> None:
    for number in range(7):
        server.redirect(f"/{number}", f"/{number + 1}")
    server.serve("/7", BODY)
    assert fetch(server.url("/2")) == BODY
    assert "redirected more than 5 times" in fault_of(server.url("/1")).problem


def test_a_loop_of_redirects_ends(server: Server) -> None:
    assert fault_of(server.redirect("/loop", "/loop")).code == "media_unreachable"
    assert server.asked == ["/loop"] * 6


@pytest.mark.parametrize("to", ["http://inside.test/x", "http://10.0.0.1/x", "http://[::1]/x"])
def test_a_redirect_to_a_private_address_is_refused(
    server: Server, names: dict[str, str], to: str
) -> None:
    server.redirect("/a", to)
    fault = fault_of(server.url("/a", "public.test"), of_names(names))
    assert (fault.code, fault.status) == ("media_host_refused", 403)


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://public.test/a", "gopher://x/"])
def test_a_redirect_to_anything_but_the_web_is_refused(
    server: Server, names: dict[str, str], to: str
) -> None:
    server.redirect("/a", to)
    assert fault_of(server.url("/a", "public.test"), of_names(names)).code == "invalid_url"


def test_the_address_that_was_checked_is_the_one_that_is_used(
    server: Server, names: dict[str, str]
) -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])
    downloader = Downloader(LIMITS, resolve=lambda host, port: next(answers))
    server.serve("/a", BODY)
    assert fetch(server.url("/a", "rebinding.test"), downloader) == BODY
    assert next(answers) == ["10.0.0.1"]  # the name was looked up once


def test_the_next_address_is_tried_where_one_does_not_answer(server: Server) -> None:
    server.serve("/a", BODY)
    downloader = Downloader(
        LIMITS, any_host=True, resolve=lambda host, port: ["127.0.0.99", "127.0.0.1"]
    )
    assert fetch(server.url("/a", "two.test"), downloader) == BODY


def test_the_certificate_is_asked_for_by_the_name(
    server: Server, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Context:
        def wrap_socket(self, sock: Any, *, server_hostname: str) -> Any:
            asked.append(server_hostname)
            raise ssl.SSLCertVerificationError("the certificate is another's")

    monkeypatch.setattr(connection, "_tls", Context)
    url = server.url("/a", "public.test").replace("http", "https")
    assert "the certificate is another's" in fault_of(url, of_names(names)).problem
    assert asked == ["public.test"]


def test_certificates_are_checked() -> None:
    context = connection._tls()
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_no_proxy_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert fetch(server.serve("/a", BODY)) == BODY


@pytest.mark.parametrize("status", [204, 403, 404, 410, 500])
def test_an_answer_without_the_file_is_said(server: Server, status: int) -> None:
    fault = fault_of(server.serve("/a", b"", status))
    assert fault.code == "media_not_found"
    assert f"the server answers {status}" in fault.problem


def test_a_length_above_the_limit_is_refused_unread(server: Server) -> None:
    assert fault_of(server.serve("/a", BODY), max_bytes=len(BODY) - 1).code == "media_too_large"
    assert fetch(server.url("/a"), max_bytes=len(BODY)) == BODY


def unannounced(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(BODY)


def test_a_body_without_a_length_is_stopped_at_the_limit(server: Server) -> None:
    server.answers["/a"] = unannounced
    assert fetch(server.url("/a")) == BODY
    assert fault_of(server.url("/a"), max_bytes=1000).code == "media_too_large"


def test_a_body_that_is_shorter_than_announced_is_a_fault(server: Server) -> None:
    fault = fault_of(server.serve("/a", BODY, Content_Length=str(len(BODY) + 9)))
    assert fault.code == "media_unreachable"
    assert "the server sent 5,120 of 5,129 bytes" in fault.problem


def test_of_a_body_that_is_longer_than_announced_only_so_much_is_read(server: Server) -> None:
    assert fetch(server.serve("/a", BODY, Content_Length="100")) == BODY[:100]


def test_a_packed_body_is_refused(server: Server) -> None:
    fault = fault_of(server.serve("/a", BODY, Content_Encoding="gzip"))
    assert "sends it as gzip" in fault.problem


def dripping(start: bytes, drop: bytes) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(start)
        while True:
            handler.wfile.write(drop)

    return answer


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 "]
)
def test_a_body_or_a_header_that_never_ends_is_given_up_in_time(
    server: Server, start: bytes
) -> None:
    server.answers["/a"] = dripping(start, b"x")
    fault = fault_of(server.url("/a"), ticking(4.0), max_bytes=10**9)
    assert (fault.code, fault.status) == ("media_timeout", 408)
    assert "not fetched within 30 seconds" in fault.problem


def test_a_server_that_says_nothing_is_given_up(server: Server) -> None:
    from threading import Event

    over = Event()
    server.answers["/a"] = lambda handler: over.wait(30) and None
    downloader = Downloader(Limits(seconds=0.05), any_host=True)
    try:
        assert fault_of(server.url("/a"), downloader).code == "media_timeout"
    finally:
        over.set()


def test_redirects_share_the_time(server: Server) -> None:
    server.redirect("/loop", "/loop")
    assert fault_of(server.url("/loop"), ticking(4.0)).code == "media_timeout"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://", "invalid_url"),
        ("http:///a.png", "invalid_url"),
        ("http://[::1/a", "invalid_url"),
        ("http://h:99999/", "invalid_url"),
        ("http://user:word@127.0.0.1/", "invalid_url"),
        ("http://127.0.0.1:1/a.png", "media_unreachable"),
        ("http://a\x00b.test/", "media_unreachable"),
        (f"http://{'a' * 70}.test/", "media_unreachable"),
    ],
)
def test_a_url_that_leads_nowhere_is_a_fault(url: str, code: str) -> None:
    assert fault_of(url).code == code


def test_an_answer_that_is_not_http_is_a_fault(server: Server) -> None:
    server.answers["/a"] = lambda handler: handler.wfile.write(b"SSH-2.0-x\r\n") and None
    assert fault_of(server.url("/a")).code == "media_unreachable"
