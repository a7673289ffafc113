"""Streams of an HTTP server: ranges, redirects, live JPEG, a server that breaks off."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.unit.backends.rtsp.conftest import FRAMES, PATIENT_S, Serve, failure, values
from tests.waiting import block_until


class Handler(BaseHTTPRequestHandler):
    """Answers by its path: /ranges and /plain have the clip, /to?URL redirects."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        name, _, query = self.path.partition("?")
        getattr(self, f"answer_{name.strip('/').partition('.')[0]}", self.answer_nothing)(query)

    def answer_nothing(self, query: str) -> None:
        self.send_error(404)

    def answer_ranges(self, query: str) -> None:
        data = self.server.clip
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self._send(data[start:])

    def answer_plain(self, query: str) -> None:
        self.send_response(200)
        self._send(self.server.clip)

    def answer_short(self, query: str) -> None:
        self.send_response(200)
        self._send(self.server.clip, len(self.server.clip) // 2)
        self.close_connection = True

    def answer_to(self, query: str) -> None:
        self.send_response(302)
        self.send_header("Location", query)
        self._send(b"")

    def answer_hangs(self, query: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(self.server.clip[:1000])
        self.server.released.wait(60)

    def answer_playlist(self, query: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.apple.mpegurl")
        self._send(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{query}\n#EXT-X-ENDLIST\n".encode())

    def _send(self, data: bytes, most: int | None = None) -> None:
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data[:most])
        except OSError:
            pass

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """An HTTP server with a clip."""

    def __init__(self, clip: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.clip = clip
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server(media: Path) -> Iterator[Server]:
    with Server((media / "media" / "clip.mp4").read_bytes()) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.released.set()
        running.shutdown()
        thread.join()


def test_a_file_is_read_with_ranges(serve: Serve, server: Server) -> None:
    call = serve().start(f"{server.url}/ranges")
    assert values(call, "INDEX") == list(range(FRAMES))
    assert server.asked[0] == ("/ranges", "bytes=0-", None)


def test_an_index_at_the_end_is_sought(serve: Serve, server: Server) -> None:
    # The index of an MP4 is at its end; what lies before is skipped if it is long.
    free = b"\x00\x10\x00\x00free" + bytes((1 << 20) - 8)
    head = server.clip[: int.from_bytes(server.clip[:4], "big")]
    server.clip = head + free + server.clip[len(head) :]
    serve().start(f"{server.url}/ranges").wait()
    assert any(asked != "bytes=0-" for _, asked, _ in server.asked)


def test_a_server_without_ranges_serves_what_can_be_read_forward(
    serve: Serve, server: Server, media: Path
) -> None:
    server.clip = (media / "media" / "clip.ts").read_bytes()
    assert values(serve().start(f"{server.url}/plain"), "INDEX") == list(range(FRAMES))


def test_redirects_within_the_list_are_followed(serve: Serve, server: Server) -> None:
    call = serve().start(f"{server.url}/to?/to?{server.url}/ranges")
    assert len(values(call, "INDEX")) == FRAMES


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("http://10.0.0.1/x", "host '10.0.0.1' with port 80 is not in the model's allowed_hosts"),
        ("http://localhost:{port}/plain", "host 'localhost' with port"),
        ("file:///etc/passwd", "is no redirect that is followed"),
        ("rtsp://127.0.0.1:{port}/", "is no redirect that is followed"),
        ("gopher://127.0.0.1:{port}/", "scheme 'gopher' is not allowed"),
        ("/to?/to?/to?/to?/plain", "redirects more than 3 times"),
    ],
)
def test_redirects_cannot_leave_the_list(serve: Serve, server: Server, target: str, text: str) -> None:
    target = target.format(port=server.server_port)
    assert text in failure(serve().start(f"{server.url}/to?{target}"))
    assert not any(path == "/plain" for path, _, _ in server.asked)


def test_playlists_are_not_followed(serve: Serve, server: Server) -> None:
    text = failure(serve().start(f"{server.url}/playlist.m3u8?{server.url}/plain"))
    assert "playlists are not followed" in text
    assert len(server.asked) == 1


def test_a_missing_file_is_named(serve: Serve, server: Server) -> None:
    url = f"{server.url}/nothing"
    assert failure(serve().start(url)) == f"'{url}': the HTTP server answered 404 Not Found"


def test_user_name_and_password_are_sent(serve: Serve, server: Server) -> None:
    url = server.url.replace("http://", "http://me:se%20cret@")
    values(serve().start(f"{url}/ranges"), "INDEX")
    assert server.asked[0][2] == "Basic bWU6c2UgY3JldA=="


@pytest.mark.parametrize("trusted", [True, False])
def test_https_checks_the_certificate(
    serve: Serve, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("store")
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    # By name: what the certificate must be for is the URL's host, not the address that it resolves to.
    cameras = serve(allowed_hosts="localhost:*,127.0.0.1:*")
    call = cameras.start(f"https://localhost:{server.server_port}/ranges")
    if trusted:
        assert len(values(call, "INDEX")) == FRAMES
    else:
        assert "certificate verify failed" in failure(call)
        assert server.asked == []


def test_cancelling_ends_a_read_that_waits(serve: Serve, server: Server) -> None:
    call = serve(read_timeout_s=PATIENT_S).start(f"{server.url}/hangs")
    block_until(lambda: server.asked)
    call.cancelled = True
    call.wait()


def test_a_server_that_falls_silent_is_given_up(serve: Serve, server: Server) -> None:
    text = failure(serve(read_timeout_s="0.2").start(f"{server.url}/hangs"))
    assert text == f"'{server.url}/hangs' sent nothing for 0.2 s"


def test_a_connection_that_breaks_off_ends_the_stream(serve: Serve, server: Server, media: Path) -> None:
    server.clip = (media / "media" / "clip.ts").read_bytes()
    call = serve().start(f"{server.url}/short")
    call.wait()
    assert 0 < len(call.responses) < FRAMES
