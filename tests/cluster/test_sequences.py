"""What a kill costs sequences: those of the replica that died, told so in words; no silent loss of state."""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import tritonclient.http

from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "OUTPUT" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "PID" data_type: TYPE_INT64 dims: [ 1 ] }
sequence_batching {
  max_sequence_idle_microseconds: 120000000
  oldest { max_candidate_sequences: 64 }
}
instance_group { kind: KIND_CPU }
parameters { key: "ray_replicas" value { string_value: "2" } }
"""
MODEL = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}
        while os.path.exists(os.path.join(args["model_repository"], "held")):
            time.sleep(0.02)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        total = self.totals[request.correlation_id()] = self.totals.get(request.correlation_id(), 0) + value
        pid = np.array([[os.getpid()]], np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", total), pb_utils.Tensor("PID", pid)])

    def finalize_sequence(self, correlation_id):
        self.totals.pop(correlation_id)
"""
IDS: tuple[int | str, ...] = (*range(1, 9), *(f"call {number}" for number in range(8)))
RESTART = (
    "must specify the START flag on the first request of the sequence: a replica of the model was lost, and"
    " the state of its sequences with it; restart the sequence with the START flag"
)


class Answer(NamedTuple):
    """Total and process of a sequence, or the text of a refusal."""

    total: int = 0
    pid: int = 0
    refusal: str = ""


class Client:
    """A connection to one ingress replica."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.connect()

    @property
    def port(self) -> int:
        """This end of it."""
        port: int = self._connection.sock.getsockname()[1]
        return port

    def close(self) -> None:
        self._connection.close()

    def add(self, sequence_id: int | str, value: int, start: bool = False, end: bool = False) -> Answer:
        parameters = {"sequence_id": sequence_id, "sequence_start": start, "sequence_end": end}
        tensor = {"name": "INPUT", "shape": [1, 1], "datatype": "INT64", "data": [value]}
        self._connection.request(
            "POST", "/v2/models/sums/infer", json.dumps({"inputs": [tensor], "parameters": parameters})
        )
        reply = json.loads(self._connection.getresponse().read())
        if "error" in reply:
            return Answer(refusal=reply["error"])
        found = {output["name"]: output["data"][0] for output in reply["outputs"]}
        return Answer(found["OUTPUT"], found["PID"])


def client_of(server: Server, pid: int) -> Client:
    """A client of this ingress process: the kernel decides who gets a connection."""
    while True:
        client = Client(server.http_port)
        client.add(IDS[0], 0)  # the connection is accepted by now
        theirs = psutil.Process(pid).net_connections("tcp")
        if any(connection.raddr and connection.raddr.port == client.port for connection in theirs):
            return client
        client.close()


@pytest.fixture
def clients(server: Server, repository: Path) -> Iterator[list[Client]]:
    """A client of each ingress; the model `sums` has two replicas."""
    directory = repository / "sums" / "1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.py").write_text(MODEL)
    (directory.parent / "config.pbtxt").write_text(CONFIG)
    control = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60)
    control.load_model("sums")
    wait_until(lambda: len(server.replicas("nereid:ingress")) == 2, 30.0, "two ingress replicas")
    wait_until(lambda: len(server.replicas("sums:1")) == 2, 30.0, "two replicas of the model")
    made = [client_of(server, pid) for pid in server.replicas("nereid:ingress")]
    yield made
    for client in made:
        client.close()
    control.unload_model("sums")


def test_only_the_sequences_of_a_killed_replica_are_lost(server: Server, clients: list[Client]) -> None:
    owners = {}
    for place, name in enumerate(IDS):
        owners[name] = clients[place % 2].add(name, place, start=True).pid
        assert clients[(place + 1) % 2].add(name, 100) == Answer(place + 100, owners[name])
    victim, survivor = server.processes("sums:1")
    assert set(owners.values()) == {victim, survivor}
    os.kill(victim, signal.SIGKILL)
    lost = [name for name in IDS if owners[name] == victim]

    def refused() -> bool:
        # Who asks before the ingress has noticed is told that the connection was lost.
        answers = [(name, client.add(name, 1)) for name in lost for client in clients]
        assert all(answer.refusal for _, answer in answers), answers
        return all(
            answer.refusal == f"inference request for sequence {name} to model 'sums' {RESTART}"
            for name, answer in answers
        )

    wait_until(refused, 10.0, "every client of a lost sequence is told to start again, by both ingresses")
    for place, name in enumerate(IDS):
        if name not in lost:
            assert [client.add(name, 1000) for client in clients] == [
                Answer(place + 1100, survivor),
                Answer(place + 2100, survivor),
            ]
    wait_until(lambda: len(set(server.processes("sums:1")) - {victim}) == 2, 30.0, "it is started again")
    assert refused(), "also once there is a new process"
    for place, name in enumerate(lost):
        assert clients[place % 2].add(name, 7, start=True).total == 7
        # The other ingress connects to the new process later, and does not call the sequence lost until then.
        while (found := clients[(place + 1) % 2].add(name, 1)).refusal:
            assert "send the request again" in found.refusal, found
        assert found.total == 8


def test_sequence_that_is_started_anew_leaves_no_earlier_state(
    server: Server, repository: Path, clients: list[Client]
) -> None:
    """Those that started while a replica was away are at the other, and their ids belong to the new one."""
    names = [f"anew {number}" for number in range(30)]
    victim, survivor = server.processes("sums:1")
    held = repository / "sums" / "held"
    held.touch()  # else the process is back before anything has begun at the other one
    os.kill(victim, signal.SIGKILL)

    def moved() -> bool:
        return {client.add(name, 1, start=True).pid for name in names for client in clients} == {survivor}

    wait_until(moved, 10.0, "both ingresses have noticed")
    held.unlink()
    wait_until(lambda: len(set(server.processes("sums:1")) - {victim}) == 2, 30.0, "Serve brings it back")

    def spread() -> bool:
        return all(len({client.add(name, 2, start=True).pid for name in names}) == 2 for client in clients)

    wait_until(spread, 30.0, "both ingresses know the new replica")
    for place, name in enumerate(names):
        started = clients[place % 2].add(name, 5, start=True)
        ended = clients[(place + 1) % 2].add(name, 1, end=True)
        assert ended == Answer(started.total + 1, started.pid)
    answers = [client.add(name, 1) for name in names for client in clients]
    assert all("must specify the START flag" in answer.refusal for answer in answers), answers
