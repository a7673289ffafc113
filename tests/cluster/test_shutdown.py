"""The end of a server: not ready first, then everything under way is answered, then exit status 0."""

import signal
import threading
import time
from pathlib import Path

import pytest
import tritonclient.http

from tests.cluster.conftest import write_model
from tests.cluster.load import Load
from tests.server import Server, wait_until

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


@pytest.mark.last_of_its_server
def test_sigterm_under_load(server: Server, repository: Path) -> None:
    write_model(repository, "slow", delay=300)
    tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120).load_model("slow")
    health: list[int] = []
    watching = threading.Event()

    def watch() -> None:
        while not watching.is_set():
            health.append(server.get("/v2/health/ready", timeout=2)[0])
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    with Load(server.http_port, "slow", 8) as load:
        wait_until(lambda: len(load.answers) > 8, 30.0, "answers of every client")
        watcher.start()
        wait_until(lambda: len(health) > 1, 10.0, "the health is watched")
        status = server.stop(signal.SIGTERM)
        watching.set()
    watcher.join()
    assert status == 0, server.output()[-4000:]
    assert load.failures == []
    assert health[0] == 200
    assert 503 in health, "health says not ready before the port closes"
    assert health[-1] == 0
