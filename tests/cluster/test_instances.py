"""Instances that change while requests flow, and instances of two models that share a resource."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_model
from tests.cluster.load import Load
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PYTHON = """
backend: "python"
max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }},
         {{ name: "TIMES" data_type: TYPE_INT64 dims: [ 2 ] }} ]
{more}
"""

MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        begin = time.monotonic_ns()
        time.sleep(0.005)
        end = time.monotonic_ns()
        times = np.array([[begin, end]], dtype=np.int64)
        return [self.answer(request, times) for request in requests]

    def answer(self, request, times):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        outputs = [pb_utils.Tensor("TIMES", times), pb_utils.Tensor("OUTPUT0", given)]
        return pb_utils.InferenceResponse(outputs)
"""

SEAT = 'rate_limiter { resources [ { name: "seat" global: true count: 1 } ] }'


def write_python(repository: Path, name: str, more: str) -> None:
    version = repository / name / "1"
    if not version.exists():  # a file that is written again is a changed one
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(PYTHON.format(more=more))


def group(count: int, more: str = "") -> str:
    return f"instance_group [ {{ count: {count} kind: KIND_CPU {more} }} ]"


@pytest.fixture
def client(server: Server) -> tritonclient.http.InferenceServerClient:
    return tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120, concurrency=8)


def inputs() -> list[tritonclient.http.InferInput]:
    tensor = tritonclient.http.InferInput("INPUT0", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
    return [tensor]


def seconds_for(requests: int, server: Server, model: str) -> float:
    """How long so many requests take, sent at once."""

    def ask(_: int) -> None:
        with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60) as client:
            client.infer(model, inputs())

    with ThreadPoolExecutor(requests) as threads:
        started = time.monotonic()
        list(threads.map(ask, range(requests)))
        return time.monotonic() - started


def instances(client: tritonclient.http.InferenceServerClient, model: str) -> int:
    return int(client.get_model_config(model)["instance_group"][0]["count"])


def test_more_and_fewer_instances_lose_no_request_and_restart_nothing(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    write_model(repository, "resized", delay=5, more=group(1))
    client.load_model("resized")
    processes = server.replicas("resized:1")
    assert len(processes) == 1
    with Load(server.http_port, "resized", 4) as load:
        for count in (3, 1, 2):
            write_model(repository, "resized", delay=5, more=group(count))
            client.load_model("resized")
            assert instances(client, "resized") == count
            time.sleep(0.2)
    assert load.failures == [] and len(load.answers) > 20
    assert server.replicas("resized:1") == processes
    client.unload_model("resized")


def test_a_restarted_replica_has_the_instances_of_the_last_change(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    write_model(repository, "resized", delay=1500, more=group(1))
    client.load_model("resized")
    override = client.get_model_config("resized")
    override["instance_group"][0]["count"] = 6
    client.load_model("resized", config=json.dumps(override))
    (process,) = server.replicas("resized:1")
    assert seconds_for(6, server, "resized") < 6, "one instance takes 9 s"
    os.kill(process, signal.SIGKILL)
    wait_until(
        lambda: server.replicas("resized:1") not in ([], [process]) and server.model_ready("resized"),
        60.0,
        "the replica is back",
    )
    assert seconds_for(6, server, "resized") < 6
    client.unload_model("resized")


def test_a_refused_change_keeps_what_serves(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    write_model(repository, "resized", more=group(2))
    client.load_model("resized")
    processes = server.replicas("resized:1")
    write_model(repository, "resized", more=group(2).replace("CPU", "CPU gpus: [ 0 ]"))
    with Load(server.http_port, "resized", 2) as load:
        with pytest.raises(InferenceServerException, match="KIND_CPU but specifies one or more GPUs"):
            client.load_model("resized")
        time.sleep(0.2)
    assert load.failures == [] and server.replicas("resized:1") == processes
    assert instances(client, "resized") == 2
    client.unload_model("resized")


def workers(server: Server, application: str) -> list[int]:
    """The processes of a Python model's instances."""
    found = []
    for pid in server.processes(application):
        for child in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):
                if any("worker_main.py" in word for word in child.cmdline()):
                    found.append(child.pid)
    return found


def test_instances_of_a_python_model_are_processes_of_one_replica(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    write_python(repository, "grown", group(1))
    client.load_model("grown")
    replicas = server.replicas("grown:1")
    assert workers(server, "grown:1") == []
    with Load(server.http_port, "grown", 4) as load:
        write_python(repository, "grown", group(3))
        client.load_model("grown")
        assert len(workers(server, "grown:1")) == 2
        write_python(repository, "grown", group(1))
        client.load_model("grown")
        wait_until(lambda: workers(server, "grown:1") == [], 60.0, "two of three go")
    assert len(replicas) == 1 and server.replicas("grown:1") == replicas
    assert load.failures == [] and len(load.answers) > 20
    client.unload_model("grown")


def test_an_instance_that_is_killed_fails_what_it_executed(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    write_python(repository, "killed", group(2))
    client.load_model("killed")
    replicas, (victim, survivor) = server.replicas("killed:1"), workers(server, "killed:1")
    with Load(server.http_port, "killed", 4) as load:
        wait_until(lambda: len(load.answers) > 20, 20.0, "both execute")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len({*workers(server, "killed:1")} - {victim}) == 2, 30.0, "it is started again")
        assert client.is_model_ready("killed")
    assert survivor in workers(server, "killed:1") and server.replicas("killed:1") == replicas
    assert len(load.failures) <= 1 and all("is not healthy" in str(each) for each in load.failures)
    client.unload_model("killed")


class Executions:
    """When executions of models began and ended, as they say themselves."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.times: dict[str, list[tuple[int, int]]] = {}

    def keep_asking(self, model: str, clients: int) -> None:
        self.times[model] = []
        for _ in range(clients):
            self._threads.append(threading.Thread(target=self._ask, args=(model,), daemon=True))
            self._threads[-1].start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def more(self, model: str) -> Callable[[], bool]:
        """Whether the model has executed some times more than now."""
        target = len(self.times[model]) + 10
        return lambda: len(self.times[model]) >= target

    def overlapping(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Executions, each with the next one, that ran at the same time."""
        ordered = sorted({interval for each in self.times.values() for interval in each})
        return [(one, other) for one, other in pairwise(ordered) if other[0] < one[1]]

    def _ask(self, model: str) -> None:
        with tritonclient.http.InferenceServerClient(self._server.http_url, network_timeout=60) as client:
            while not self._stop.is_set():
                try:
                    begin, end = client.infer(model, inputs()).as_numpy("TIMES")[0]
                except InferenceServerException:  # its instance was killed
                    time.sleep(0.05)
                else:
                    self.times[model].append((int(begin), int(end)))


def test_models_that_share_a_resource_never_execute_at_the_same_time(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    write_python(repository, "left", group(2, SEAT))
    write_python(repository, "right", group(1, SEAT))
    client.load_model("left")
    client.load_model("right")
    executions = Executions(server)
    executions.keep_asking("left", 3)
    executions.keep_asking("right", 2)
    try:
        wait_until(executions.more("left"), 60.0, "one model executes")
        wait_until(executions.more("right"), 60.0, "the other executes")
        os.kill(workers(server, "left:1")[0], signal.SIGKILL)
        wait_until(executions.more("right"), 60.0, "a killed holder keeps nothing")
        wait_until(executions.more("left"), 60.0, "the other instance of the killed one's model goes on")
    finally:
        executions.end()
    assert executions.overlapping() == []
    client.unload_model("left")
    client.unload_model("right")
