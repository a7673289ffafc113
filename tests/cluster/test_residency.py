"""Models on demand: more of them than fit into memory, loaded by requests and evicted for each other."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import CONFIG, write_ensemble, write_model, write_python_model
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

BUDGET = 1000 << 20
"""For three replicas: each has 200 MiB of its own, and 70 to 95 MiB that Ray's processes share in part."""
MODELS = ("steady", "b", "c", "d")

PLAIN = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.weights = b"x" * (200 << 20)

    def execute(self, requests):
        given = (pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x.as_numpy())]) for x in given]
"""
UNDESCRIBED = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.weights = b"x" * (200 << 20)

    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [16]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [16]})
        return config

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        if given.as_numpy()[0, 0] == 0:
            asked = {"model_name": "b", "requested_output_names": ["OUTPUT0"], "inputs": [given]}
            called = pb_utils.InferenceRequest(**asked).exec()
            if called.has_error():
                return pb_utils.InferenceResponse(error=called.error())
        output = pb_utils.Tensor("OUTPUT0", given.as_numpy())
        return pb_utils.InferenceResponse([output])
"""


def plain(more: str = "") -> str:
    """The configuration of a Python model that returns its input."""
    return CONFIG.format(delay=0, more=more).replace("identity", "python")


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two ingresses and memory for three of its models."""
    repository = tmp_path_factory.mktemp("crowded")
    for name in MODELS:
        write_python_model(repository, name, plain(), PLAIN)
    write_ensemble(repository, "ensemble")
    write_python_model(repository, "undescribed", 'backend: "python"', UNDESCRIBED)
    pinned = 'parameters { key: "pinned" value { string_value: "true" } }'
    write_python_model(repository, "pinned", plain(pinned), PLAIN)
    broken = write_model(repository, "broken")
    (broken / "config.pbtxt").write_text(
        (broken / "config.pbtxt").read_text().replace("identity", "nonesuch")
    )
    arguments = (f"--model-repository={repository}", f"--model-memory-bytes={BUDGET}", "--ingress-replicas=2")
    server = Server(arguments, repository / ".." / "crowded.log").start()
    yield server
    server.stop()


def infer(server: Server, model: str, value: float = 1.0) -> None:
    """Send one request on a connection of its own, so that either ingress may get it."""
    ensemble = model == "ensemble"
    tensor = tritonclient.http.InferInput("IN" if ensemble else "INPUT0", [1, 16], "FP32")
    array = np.full((1, 16), value, np.float32)
    tensor.set_data_from_numpy(array)
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120) as client:
        result = client.infer(model, [tensor])
    assert result.as_numpy("OUT" if ensemble else "OUTPUT0").tolist() == array.tolist()


def stream(server: Server, model: str) -> None:
    tensor = tritonclient.grpc.InferInput("INPUT0", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 16), np.float32))
    answers: list[object] = []
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer(model, [tensor])
        client.stop_stream()
    assert [type(answer).__name__ for answer in answers] == ["InferResult"], answers


def metric(server: Server, name: str) -> float:
    _, page = server.get("/metrics", port=server.metrics_port)
    (found,) = [line for line in page.decode().splitlines() if line.startswith(f"{name} ")]
    return float(found.split()[1])


def wait_for_metric(server: Server, name: str, value: float) -> None:
    """Wait until an ingress has heard of it from the manager."""
    wait_until(lambda: metric(server, name) == value, 10, f"{name} is {value}")


def replicas_bytes(server: Server) -> int:
    """Measure the replicas of models, and their processes, without the server's help."""
    found = 0
    for pid in {*server.replicas(""), *server.processes("")} - set(server.replicas("nereid:")):
        try:
            replica = psutil.Process(pid)
            found += sum(p.memory_full_info().pss for p in [replica, *replica.children(recursive=True)])
        except psutil.Error:
            continue
    return found


def index(server: Server) -> dict[str, tuple[str, str]]:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        return {
            row["name"]: (row["state"], row.get("reason", "")) for row in client.get_model_repository_index()
        }


def test_more_models_than_memory_answer_without_an_error(crowded: Server) -> None:
    idle = {name: ("READY", "idle") for name in (*MODELS, "broken", "ensemble", "undescribed")}
    assert index(crowded) == {**idle, "ensemble": ("READY", ""), "pinned": ("READY", "")}
    assert [name for name in MODELS if crowded.replicas(f"{name}:1")] == []
    assert crowded.model_ready("b")
    wait_for_metric(crowded, "nereid_models_resident", 1)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: infer(crowded, "b"), range(16)))
    wait_for_metric(crowded, "nereid_model_demands", 1)  # all of them waited for one load
    infer(crowded, "ensemble")
    infer(crowded, "undescribed", 0.0)  # which calls b
    stream(crowded, "c")
    _, answer = crowded.get("/v2/models/undescribed/config")
    assert [given["name"] for given in json.loads(answer)["input"]] == ["INPUT0"]

    most = 0
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(infer, crowded, name) for name in (*MODELS, "ensemble", "undescribed", "pinned")]
        while not all(future.done() for future in sent):
            most = max(most, replicas_bytes(crowded))
        for future in sent:
            future.result()
    wait_until(lambda: metric(crowded, "nereid_model_evictions") >= 2, 10, "models were evicted")
    assert crowded.replicas("pinned:1")
    assert most <= 1.05 * BUDGET
    assert metric(crowded, "nereid_model_memory_bytes") <= 1.05 * BUDGET


def test_a_broken_model_answers_with_its_reason_and_then_at_once(crowded: Server) -> None:
    before = crowded.replicas("")
    for _ in range(2):
        started = monotonic()
        with pytest.raises(InferenceServerException, match="nonesuch"):
            infer(crowded, "broken")
    assert monotonic() - started < 1.0
    assert crowded.replicas("") == before
