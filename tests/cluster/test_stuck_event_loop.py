"""A Python model that never returns on the event loop of its replica, which Serve replaces."""

from pathlib import Path

import numpy as np
import pytest
import tritonclient.http

from tests.cluster.conftest import write_python_model
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            while array[0]:
                pass
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return responses
"""


def infer(client: tritonclient.http.InferenceServerClient, value: float) -> None:
    tensor = tritonclient.http.InferInput("IN", [4], "FP32")
    tensor.set_data_from_numpy(np.full(4, value, np.float32))
    client.infer("endless", [tensor])


@pytest.mark.slow
def test_a_replica_with_a_stuck_event_loop_is_replaced(server: Server, repository: Path) -> None:
    write_python_model(repository, "endless", CONFIG, MODEL)
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    client.load_model("endless")
    (stuck,) = server.replicas("endless:1")
    for _ in range(200):
        infer(client, 0)
    with pytest.raises(Exception, match="endless"):  # answered when the replica's process ends
        infer(client, 1)
    wait_until(lambda: server.replicas("endless:1") not in ([], [stuck]), 60.0, "a new replica")
    wait_until(lambda: server.model_ready("endless"), 30.0, "the new replica is ready")
    infer(client, 0)
    assert "model 'endless' has kept the event loop of its replica busy" in server.output()
    client.unload_model("endless")
