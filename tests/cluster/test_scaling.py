"""A model that is scaled by its load, and that keeps its replicas when the manager is killed."""

import os
import re
import signal
from pathlib import Path

import pytest
import tritonclient.http

from tests.cluster.conftest import write_model
from tests.cluster.load import VALUES, Load
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def parameters(**values: str) -> str:
    text = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}'
    return "\n".join(text.format(*each) for each in values.items())


def reason(server: Server, client: tritonclient.http.InferenceServerClient, model: str) -> str:
    """The reason of a version in the index."""
    rows = client.get_model_repository_index()
    return str(next(row.get("reason", "") for row in rows if row["name"] == model))


def infer(client: tritonclient.http.InferenceServerClient, model: str) -> bool:
    tensor = tritonclient.http.InferInput("INPUT0", [1, 16], "FP32")
    tensor.set_data_from_numpy(VALUES.reshape(1, 16))
    return bool((client.infer(model, [tensor]).as_numpy("OUTPUT0") == VALUES).all())


def test_replicas_follow_the_load_and_outlive_the_manager(server: Server, repository: Path) -> None:
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    write_model(repository, "scaled", delay=100, more=parameters(max_replicas="2"))
    client.load_model("scaled")
    wait_until(lambda: reason(server, client, "scaled") == "1 replica: start", 10.0, "it is followed")
    with Load(server.http_port, "scaled", 6) as load:
        asked = wait_until(
            lambda: reason(server, client, "scaled").startswith("2 replicas"), 20.0, "a second is asked for"
        )
        wait_until(lambda: len(server.replicas("scaled:1")) == 2, 60.0, "it is started")
        (manager,) = server.replicas("nereid:repository-manager")
        os.kill(manager, signal.SIGKILL)
        wait_until(lambda: server.replicas("nereid:repository-manager") not in ([], [manager]), 60.0, "back")
        wait_until(lambda: reason(server, client, "scaled") == "2 replicas: start", 60.0, "it is adopted")
    assert load.failures == [] and len(server.replicas("scaled:1")) == 2
    assert re.search(r"scaling 'scaled' version 1 from 1 to 2 replicas \(queue: load [\d.]+", server.output())
    print(f"a second replica was asked for after {asked:.1f} s")
    client.unload_model("scaled")


def test_idle_model_has_no_replica_until_a_request_waits_for_one(server: Server, repository: Path) -> None:
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    write_model(repository, "idler", more=parameters(max_replicas="2", min_replicas="0", idle_seconds="1"))
    client.load_model("idler")
    wait_until(lambda: not server.replicas("idler:1"), 60.0, "its replica ends")
    assert reason(server, client, "idler").startswith("0 replicas: idle, no request for 1 s")
    assert server.model_ready("idler")
    with Load(server.http_port, "idler", 4) as load:
        waited = wait_until(lambda: len(load.answers) >= 4, 60.0, "requests are answered by a new one")
        assert server.model_ready("idler")
    assert load.failures == []
    print(f"requests waited {waited:.1f} s for a replica")
    wait_until(lambda: not server.replicas("idler:1"), 60.0, "it ends again")
    assert infer(client, "idler")
    client.unload_model("idler")
