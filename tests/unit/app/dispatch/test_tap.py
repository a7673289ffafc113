"""A tap sees every request and its answer, from wherever it comes; what fails in it ends requests alone."""

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from app.core.inference import Call, Sink, Target
from app.core.tensors import InferRequest, InferResponse
from app.routing.table import VersionEntry
from app.settings.load import from_args
from nereid.engine.engine import Engine
from nereid.engine.fronts import Fronts
from tests.server import free_port
from tests.unit.nereid.engine.repositories import add_ensemble, add_model

ROW = np.array([1.0, 2.0], np.float32)
CALLS = """
inputs = [pb_utils.Tensor("IN", _in(requests[0]))]
answer = pb_utils.InferenceRequest(model_name="double", inputs=inputs, requested_output_names=["OUT"]).exec()
return [pb_utils.InferenceResponse(answer.output_tensors())]
"""
WAIT_S = 20.0


class Tap:
    """Keeps each request's model and sum of inputs, and the sum of the outputs it was answered with."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, float]] = []
        self.broken = False

    def __call__(self, entry: VersionEntry, target: Target) -> Target:
        return Tapped(self, entry.name, target)


class Tapped:
    def __init__(self, tap: Tap, name: str, target: Target) -> None:
        self._tap, self._name, self._target = tap, name, target

    @property
    def available(self) -> bool:
        return self._target.available

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        if self._tap.broken:
            raise RuntimeError("the tap is broken")
        asked = sum(float(tensor.array().sum()) for tensor in request.inputs)

        def deliver(response: InferResponse) -> None:
            answered = sum(float(tensor.array().sum()) for tensor in response.outputs)
            self._tap.seen.append((self._name, asked, answered))
            sink(response)

        return self._target.submit(request, deliver)


class Bench:
    """An engine with the tap, its fronts, and clients of them that keep their connections."""

    def __init__(self, repository: Path) -> None:
        add_model(repository, "double")
        add_model(repository, "calls", CALLS)
        add_ensemble(repository, "chain", "double", "double")
        self.tap = Tap()
        self.port, grpc_port = free_port(), free_port()
        ports = {"http_port": self.port, "grpc_port": grpc_port, "allow_metrics": False}
        self.engine = Engine(from_args({"model_repository": str(repository), **ports}), tap=self.tap)
        self.engine.start()
        self.fronts = Fronts(self.engine)
        self.fronts.open()
        self.http = tritonclient.http.InferenceServerClient(f"127.0.0.1:{self.port}")
        self.grpc = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}")

    def close(self) -> None:
        self.http.close()
        self.grpc.close()
        self.fronts.close(0.5)
        self.engine.close()

    def over(self, protocol: str, model: str) -> list[float]:
        module = getattr(tritonclient, protocol)
        given = module.InferInput("IN", [2], "FP32")
        given.set_data_from_numpy(ROW)
        answer = getattr(self, protocol).infer(model, [given]).as_numpy("OUT")
        return [float(value) for value in answer]

    def taken(self) -> list[tuple[str, float, float]]:
        taken, self.tap.seen = self.tap.seen, []
        return taken


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with closing(Bench(tmp_path_factory.mktemp("repository"))) as made:
        yield made


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_of_clients_steps_and_calls_of_models_are_seen_once(bench: Bench, protocol: str) -> None:
    for _ in range(3):  # the first is read as any other, later ones by what is known of it
        assert bench.over(protocol, "double") == [2, 4]
    assert bench.taken() == [("double", 3, 6)] * 3
    assert bench.over(protocol, "chain") == [4, 8]
    assert bench.taken() == [("double", 3, 6), ("double", 6, 12), ("chain", 3, 12)]
    assert bench.over(protocol, "calls") == [2, 4]
    assert bench.taken() == [("double", 3, 6), ("calls", 3, 6)]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["double", "chain", "calls"])
def test_a_broken_tap_ends_requests_alone(bench: Bench, protocol: str, model: str) -> None:
    expected = bench.over(protocol, model)
    bench.tap.broken = True
    for _ in range(2):
        with pytest.raises(InferenceServerException):
            bench.over(protocol, model)
    bench.tap.broken = False
    assert bench.over(protocol, model) == expected
    bench.taken()


def test_the_connection_of_a_failed_request_stays_open(bench: Bench) -> None:
    body = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}'
    with closing(HTTPConnection("127.0.0.1", bench.port, timeout=WAIT_S)) as connection:
        connection.connect()
        socket = connection.sock
        for broken, status in ((False, 200), (False, 200), (True, 500), (True, 500), (False, 200)):
            bench.tap.broken = broken
            connection.request("POST", "/v2/models/double/infer", body)
            answer = connection.getresponse()
            answer.read()
            assert (answer.status, connection.sock is socket) == (status, True)
    bench.taken()
