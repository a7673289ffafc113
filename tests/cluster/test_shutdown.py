"""The end of a server: not ready first, then everything under way is answered, then exit status 0."""

import http.client
import os
import signal
import time
from pathlib import Path

import pytest
import tritonclient.http

from tests.cluster.conftest import write_model
from tests.cluster.load import check_stop_under_load
from tests.server import START_S, Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def test_failed_start_exits_with_a_table(tmp_path: Path) -> None:
    (tmp_path / "repository" / "broken" / "1").mkdir(parents=True)
    (tmp_path / "repository" / "broken" / "config.pbtxt").write_text('backend: "nonesuch"\n')
    write_model(tmp_path / "repository", "good")
    server = Server([f"--model-repository={tmp_path / 'repository'}"], tmp_path / "log").start(wait=False)
    assert server.process is not None
    assert server.process.wait(120) == 1
    output = server.output()
    assert "error: creating server: Internal - failed to load all models" in output
    assert "| broken | 1       | UNAVAILABLE: " in output
    assert "| good   | 1       | READY" in output


def test_server_without_its_repository_answers_metadata_only(tmp_path: Path) -> None:
    """As tritonserver; it is there to be asked why."""
    arguments = [f"--model-repository={tmp_path / 'nowhere'}", "--exit-on-error=false"]
    server = Server(arguments, tmp_path / "log").start(wait=False)
    try:
        wait_until(lambda: server.get("/v2")[0] == 200, START_S, "the server answers")
        wait_until(lambda: server.get("/v2/health/live")[0] == 400, 30.0, "it is not live")
        assert server.get("/v2/health/ready")[0] == 400
        refused = (503, b'{"error":"Server not ready"}')
        assert server.get("/v2/models/m") == server.get("/v2/models/stats") == refused
        reason = f"failed to open directory {tmp_path / 'nowhere'}"
        wait_until(lambda: reason in server.output(), 10.0, "the reason is printed")  # by way of Ray's logs
        assert not server.exited()
    finally:
        status = server.stop()
    assert status == 0


def test_port_in_use(tmp_path: Path) -> None:
    import socket

    write_model(tmp_path / "repository", "good")
    server = Server([f"--model-repository={tmp_path / 'repository'}"], tmp_path / "log")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", server.http_port))
        taken.listen()
        server.start(wait=False)
        assert server.process is not None
        assert server.process.wait(60) == 1
    assert server.output().strip() == (
        f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{server.http_port}' already in use"
    )


def test_open_connection_is_served_while_the_server_stops(tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "good")
    server = Server([f"--model-repository={tmp_path / 'repository'}"], tmp_path / "log").start()
    assert server.process is not None
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().read() == b""
        started = time.monotonic()
        # As `timeout`, supervisors and CI runners stop a program: Ray's processes get the signal too.
        os.killpg(server.process.pid, signal.SIGTERM)
        told = "Timeout 30: Found 1 HTTP service connections"
        wait_until(lambda: told in server.output(), 10.0, "the server says what it waits for")
        assert server.get("/v2/health/live") == (0, b"")
        connection.request("GET", "/v2/models/good/config")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Connection"]) == (200, "close")
        assert b'"name":"good"' in answer.read()
        assert server.process.wait(60) == 0
        assert time.monotonic() - started < 30, "it waits no longer than for the connection"
    finally:
        server.stop()
    told_last = [
        "Waiting for in-flight requests to complete.",
        "Found 0 model versions that have in-flight inferences",
        "All models are stopped, unloading models",
        "Found 1 live models and 0 in-flight non-inference requests",
    ]
    positions = [server.output().find(text) for text in (told, *told_last)]
    assert -1 not in positions and positions == sorted(positions)


@pytest.mark.last_of_its_server
def test_nereid_stopped_under_load(server: Server, repository: Path) -> None:
    write_model(repository, "slow", delay=300)
    tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120).load_model("slow")
    check_stop_under_load(server)
