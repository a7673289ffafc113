"""A load that never returns: it can be unloaded, and does not delay the end of the server."""

import signal
import threading
import time
from pathlib import Path

import pytest
import tritonclient.http

from tests.cluster.conftest import write_model, write_python_model
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""
MODEL = """
import time

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(1e6)

    def execute(self, requests):
        return []
"""


class Loading:
    """A client that loads a model, in a thread."""

    def __init__(self, server: Server, model: str) -> None:
        self.error = ""
        self._client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
        self._model = model
        self.thread = threading.Thread(target=self._load, daemon=True)
        self.thread.start()

    def _load(self) -> None:
        try:
            self._client.load_model(self._model)
        except Exception as error:
            self.error = str(error)


def hangs(server: Server, model: str) -> Loading:
    loading = Loading(server, model)
    wait_until(lambda: bool(server.replicas(f"{model}:1")), 30.0, "the replica has started")
    time.sleep(1)
    assert loading.thread.is_alive()
    return loading


@pytest.mark.last_of_its_server
def test_a_load_that_never_returns(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for name in ("stuck", "stuck2"):
        write_python_model(repository, name, CONFIG, MODEL)
    write_model(repository, "good")
    log = tmp_path / "server.log"
    arguments = [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        "--model-load-thread-count=2",
    ]
    server = Server(arguments, log).start()
    try:
        first = hangs(server, "stuck")
        client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60)
        began = time.monotonic()
        client.unload_model("stuck")
        assert time.monotonic() - began < 50  # it is given up after half a minute
        wait_until(lambda: not first.thread.is_alive(), 20.0, "the load is answered")
        assert "unloaded while it was loading" in first.error
        wait_until(lambda: not server.replicas("stuck:1"), 30.0, "its process is killed")
        second = hangs(server, "stuck2")
        client.load_model("good")
        assert client.is_model_ready("good")
    finally:
        began = time.monotonic()
        status = server.stop(signal.SIGTERM)
    assert status == 0
    assert time.monotonic() - began < 30
    second.thread.join(20)
    assert second.error
