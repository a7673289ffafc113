"""A model that ends its process at each request: what clients are told, and how often it is started again."""

import time
from pathlib import Path

import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_python_model
from tests.cluster.load import VALUES
from tests.cluster.test_hung_replica import in_index
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CONFIG = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
"""
MODEL = """
import os

class TritonPythonModel:
    def execute(self, requests):
        os._exit(3)
"""
LOADED = """
import os

class TritonPythonModel:
    def initialize(self, args):
        {end}

    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("os.abort()", "Stub process 'ends_10_0_0' is not healthy. It.*by signal 6"),
        ("os._exit(3)", "Stub process 'ends_11_0_0' is not healthy. It.*exit code 3"),
        ("raise SystemExit(3)", "SystemExit: 3"),  # an exception, as in Triton
    ],
)
def test_a_model_that_ends_its_process_while_it_loads(
    server: Server, repository: Path, end: str, text: str
) -> None:
    name = f"ends_{len(end)}"
    write_python_model(repository, name, CONFIG, LOADED.format(end=end))
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60)
    with pytest.raises(InferenceServerException, match=text):
        client.load_model(name)


def test_a_model_that_crashes_at_each_request(server: Server, repository: Path) -> None:
    write_python_model(repository, "crashes", CONFIG, MODEL)
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60)
    client.load_model("crashes")
    tensor = tritonclient.http.InferInput("INPUT0", [16], "FP32")
    tensor.set_data_from_numpy(VALUES)
    for _ in range(3):
        wait_until(lambda: server.model_ready("crashes"), 40.0, "the model is ready")
        (pid,) = server.processes("crashes:1")
        with pytest.raises(InferenceServerException, match=rf"its process {pid} ended with exit code 3"):
            client.infer("crashes", [tensor])
    text = "a replica has ended unexpectedly 3 times in a row; it is started again in 2 s"
    wait_until(lambda: text in in_index(server, "crashes")[1], 20.0, "the index says so")
    assert in_index(server, "crashes")[0] == "UNAVAILABLE"
    with pytest.raises(InferenceServerException, match="started again in 2 s"):
        client.infer("crashes", [tensor])
    wait_until(lambda: server.model_ready("crashes"), 40.0, "the model is ready")
    wait_until(lambda: in_index(server, "crashes") == ("READY", ""), 5.0, "the reason is gone")
    began = time.monotonic()
    client.unload_model("crashes")
    assert time.monotonic() - began < 20
