"""Executions that take long, or hold the interpreter: neither model nor server looks dead for it."""

import threading
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
HOLDS = """
import ctypes
import triton_python_backend_utils as pb_utils

holding = ctypes.PyDLL(None)  # its functions keep the interpreter's lock

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            holding.sleep(int(array[0]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return responses
"""
SPINS = """
import enum
import triton_python_backend_utils as pb_utils

def is_on_event_loop():
    frame = enum.sys._getframe()  # a model that imports `sys` itself stays off the loop
    while frame is not None and "event_loop_execution" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            total = sum(range(int(array[0]) * 60_000_000))
            out = pb_utils.Tensor("OUT", array + is_on_event_loop() / 2)
            responses.append(pb_utils.InferenceResponse([out]))
        return responses
"""


def infer(server: Server, model: str, value: float) -> float:
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120) as client:
        return infer_by(client, model, value)


def infer_by(client: tritonclient.http.InferenceServerClient, model: str, value: float) -> float:
    tensor = tritonclient.http.InferInput("IN", [4], "FP32")
    tensor.set_data_from_numpy(np.full(4, value, np.float32))
    return float(client.infer(model, [tensor]).as_numpy("OUT")[0])


def stays_ready_during(server: Server, model: str, value: float) -> float:
    """Make a long request and return its answer; neither server nor model may be less ready meanwhile."""
    answers: list[float] = []
    before = server.get("/v2/health/ready")[0]
    asking = threading.Thread(target=lambda: answers.append(infer(server, model, value)), daemon=True)
    asking.start()
    seen = set()
    while asking.is_alive():
        seen.add((server.get("/v2/health/ready")[0], server.get(f"/v2/models/{model}/ready")[0]))
        asking.join(0.3)
    assert len(answers) == 1
    statuses, of_model = zip(*seen, strict=True)
    assert set(of_model) == {200}
    # Other models of this server may not be ready, and become so meanwhile.
    assert before != 200 or set(statuses) == {200}
    return answers[0]


@pytest.mark.parametrize("seconds", [7, pytest.param(60, marks=pytest.mark.slow)])
def test_an_execution_that_holds_the_interpreter(server: Server, repository: Path, seconds: int) -> None:
    write_python_model(repository, "holds", CONFIG, HOLDS)
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120) as client:
        client.load_model("holds")
        processes = server.processes("holds:1")
        assert stays_ready_during(server, "holds", seconds) == seconds
        assert server.processes("holds:1") == processes
        client.unload_model("holds")


def executes_long_on_the_event_loop(server: Server, client: tritonclient.http.InferenceServerClient) -> bool:
    # One that the system interrupts for 1 ms takes the model off the loop for some executions: the long one,
    # too, if it is the next.
    wait_until(lambda: infer_by(client, "spins", 0) == 0.5, 60, "an execution on the event loop")
    answer = stays_ready_during(server, "spins", 4)
    assert int(answer) == 4
    return answer == 4.5


def test_a_long_execution_of_a_model_that_executes_on_the_event_loop(
    server: Server, repository: Path
) -> None:
    write_python_model(repository, "spins", CONFIG, SPINS)
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120) as client:
        client.load_model("spins")
        processes = server.processes("spins:1")
        wait_until(
            lambda: executes_long_on_the_event_loop(server, client), 120, "a long one on the event loop"
        )
        assert server.processes("spins:1") == processes
        assert infer(server, "spins", 0) == 0
        wait_until(lambda: "has kept the event loop of its replica busy" in server.output(), 30, "a warning")
        client.unload_model("spins")
