"""What a kill costs: the requests in flight on the process that died, and nothing else."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_ensemble, write_model
from tests.cluster.load import Load
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CLIENTS = 8


def kill(pid: int) -> float:
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def test_killed_model_replica(server: Server) -> None:
    (victim,) = server.replicas("victim:1")
    with Load(server.http_port, "victim", CLIENTS) as load, Load(server.http_port, "steady", 2) as steady:
        time.sleep(1)
        kill(victim)
        wait_until(lambda: not server.model_ready("victim"), 1.0, "the model turns not ready")
        wait_until(lambda: server.model_ready("victim"), 30.0, "Serve brings the model back")
        time.sleep(1)
    # A client that asks again while no replica is there is refused at once, with another text.
    lost = [a for a in load.failures if b"connection to its replica lost" in a.body]
    refused = [a for a in load.failures if b"is not at ready state" in a.body]
    assert 1 <= len(lost) <= CLIENTS
    assert all(a.status == 503 and b"model 'victim'" in a.body for a in lost)
    assert len(lost) + len(refused) == len(load.failures)
    assert load.answers[-1].correct
    assert steady.failures == []
    assert server.replicas("victim:1") != [victim]
    page = server.get("/metrics", port=server.metrics_port)[1].decode()
    (restarts,) = re.findall(r'nereid_replica_restarts{model="victim",version="1"} (\d+)', page)
    assert int(restarts) >= 1
    reasons = re.findall(r'nereid_replica_lost{model="victim",reason="([^"]*)",version="1"} [1-9]', page)
    assert {"was killed by signal 9 (SIGKILL)", "has ended"} & set(reasons)


def test_killed_ingress(server: Server) -> None:
    wait_until(lambda: len(server.replicas("nereid:ingress")) == 2, 30.0, "two ingress replicas")
    victim = server.replicas("nereid:ingress")[0]
    with Load(server.http_port, "steady", CLIENTS) as load:
        time.sleep(1)
        died = kill(victim)
        time.sleep(1)
        wait_until(lambda: len(server.replicas("nereid:ingress")) == 2, 30.0, "Serve brings it back")
        time.sleep(1)
    broken = [answer for answer in load.failures if answer.status == 0]
    # Its request in flight, and a connection made while the dying process still had its listener: the kernel
    # closes the files of a process one after the other, and others may run in between.
    assert len(broken) <= 2 * CLIENTS
    assert broken == load.failures
    assert all(answer.at < died + 1 for answer in broken)


def test_killed_manager(server: Server, repository: Path) -> None:
    (victim,) = server.replicas("nereid:repository-manager")
    client = tritonclient.http.InferenceServerClient(server.http_url)
    for ensemble in ("planned", "forgotten"):  # nothing of them runs in Serve
        write_ensemble(repository, ensemble)
        client.load_model(ensemble)
    client.unload_model("forgotten")
    before = served(client)
    with Load(server.http_port, "steady", 4) as load:
        kill(victim)
        wait_until(lambda: server.replicas("nereid:repository-manager") not in ([], [victim]), 30.0, "back")
        write_model(repository, "late")
        wait_until(lambda: _loads(client, "late"), 30.0, "models can be loaded again")
        client.infer("late", [_input()])
        client.unload_model("late")
    assert load.failures == []
    assert before == served(client) == {("steady", "1"), ("victim", "1"), ("planned", "1")}
    client.unload_model("planned")


def served(client: tritonclient.http.InferenceServerClient) -> set[tuple[str, str]]:
    """What is at READY state; what was unloaded before it died, a new manager cannot know."""
    index = client.get_model_repository_index()
    return {(m["name"], m["version"]) for m in index if m.get("state") == "READY"}


def _loads(client: tritonclient.http.InferenceServerClient, model: str) -> bool:
    try:
        client.load_model(model)
    except InferenceServerException:
        return False
    return True


def _input() -> tritonclient.http.InferInput:
    import numpy as np

    tensor = tritonclient.http.InferInput("INPUT0", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
    return tensor
