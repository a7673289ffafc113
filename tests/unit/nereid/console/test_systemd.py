"""Messages to systemd, which is a socket here."""

import http.server
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nereid.console import systemd
from nereid.console.systemd import notify, notify_ready, notify_starting

Receive = Callable[[], dict[str, str]]


@pytest.fixture(params=["path", "abstract"])
def receive(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Receive]:
    """Receives a message, as its fields."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@nereid-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(address.replace("@", "\0"))
        server.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        yield lambda: dict(line.split("=", 1) for line in server.recv(4096).decode().splitlines())


def test_state_is_told(receive: Receive) -> None:
    notify_starting("starting Ray")
    assert receive() == {"STATUS": "starting Ray", "EXTEND_TIMEOUT_USEC": "60000000"}
    notify_ready("3 of 3 models are ready", "")
    assert receive() == {"READY": "1", "STATUS": "3 of 3 models are ready"}
    notify(STOPPING=1)
    assert receive() == {"STOPPING": "1"}


def test_nothing_is_told_without_systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_ready("ready", "")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify(READY=1)


def test_watchdog_hears_of_a_server_that_answers(receive: Receive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    notify_ready("ready", "")
    assert receive()["READY"] == "1"
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        notify_ready("ready", f"http://127.0.0.1:{server.server_port}")
        assert receive()["READY"] == "1"
        assert receive() == receive() == {"WATCHDOG": "1"}
        server.shutdown()


def test_a_server_that_does_not_answer_is_not_alive() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert not systemd._answers(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.1)
    assert not systemd._answers("http://127.0.0.1:1", 1)
