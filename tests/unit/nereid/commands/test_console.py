"""`nereid console`: its arguments, and the process beside a server."""

import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from nereid.commands import console
from tests.certificates import Authority
from tests.server import free_port
from tests.waiting import block_until

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host", "http://"])
def test_server_must_be_named(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "running_servers", list)
    assert console.main([f"--url={url}"]) == 2
    assert "--url http://127.0.0.1:8000" in capsys.readouterr().err


def test_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert console.main(["--url=http://127.0.0.1:9", f"--port={port}"]) == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_network_without_tls_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        assert console.main(["--url=http://127.0.0.1:9", "--address=0.0.0.0", f"--port={port}"]) == 1
    assert "tokens pass the network as they are" in capsys.readouterr().err


def test_console_of_its_own_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, port = Authority(tmp_path), free_port()
    pair = authority.issue("console")
    assert console.main(["--url=http://127.0.0.1:9", f"--server-cert={pair.cert}"]) == 2
    assert "--console-server-key" in capsys.readouterr().err
    given = [f"--port={port}", f"--server-cert={pair.cert}", f"--server-key={pair.key}"]
    command = [sys.executable, "-m", "nereid", "console", "--url=http://127.0.0.1:9", *given]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert f"https://127.0.0.1:{port}" in process.stdout.readline()
        trusting = ssl.create_default_context(cafile=authority.root)
        with urlopen(f"https://127.0.0.1:{port}/", timeout=20, context=trusting) as page:
            assert b"Nereid console" in page.read()
    finally:
        process.terminate()
        process.communicate()


def test_console_serves_its_pages_without_a_server_and_ends_by_a_signal() -> None:
    port = free_port()
    command = [sys.executable, "-m", "nereid", "console", "--url=http://127.0.0.1:9", f"--port={port}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}" in process.stdout.readline()
        with urlopen(f"http://127.0.0.1:{port}/", timeout=20) as page:
            assert b"Nereid console" in page.read()
        os.kill(process.pid, signal.SIGTERM)
        block_until(lambda: process.poll() == 0, "it did not end")
    finally:
        process.kill()
        process.communicate()
