"""A replica that hangs: avoided within seconds, in use again when it answers, replaced when it does not."""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_python_model
from tests.cluster.load import VALUES, Load
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SUSPECTED_S = 4.0


@pytest.fixture
def victim(server: Server) -> Iterator[int]:
    wait_until(lambda: server.model_ready("victim"), 30.0, "the model is ready")
    (pid,) = server.replicas("victim:1")
    yield pid
    if os.path.exists(f"/proc/{pid}"):
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: server.model_ready("victim"), 60.0, "the model is ready again")


def in_index(server: Server, model: str) -> tuple[str, str]:
    """State and reason of a model in the repository index."""
    request = urllib.request.Request(f"http://{server.http_url}/v2/repository/index", method="POST")
    with urllib.request.urlopen(request, timeout=5) as response:
        rows = json.loads(response.read())
    (row,) = (row for row in rows if row["name"] == model)
    return row["state"], row.get("reason", "")


def is_ready_by_metrics(server: Server, model: str) -> bool:
    page = server.get("/metrics", port=server.metrics_port)[1].decode()
    found = re.search(rf'nereid_model_ready{{model="{model}".*}} (\d)', page)
    return found is not None and found[1] == "1"


def test_a_stopped_replica_is_avoided_until_it_answers(server: Server, victim: int) -> None:
    assert is_ready_by_metrics(server, "victim")
    with Load(server.http_port, "victim", 4) as load, Load(server.http_port, "steady", 2) as steady:
        wait_until(lambda: bool(load.answers), 5.0, "requests are answered")
        os.kill(victim, signal.SIGSTOP)
        wait_until(lambda: server.model_unready("victim"), SUSPECTED_S, "the model is not ready anywhere")
        wait_until(lambda: bool(load.failures), 1.0, "the requests in flight fail")
        wait_until(lambda: not is_ready_by_metrics(server, "victim"), 2.0, "the metric says so")
        state, reason = in_index(server, "victim")
        assert state == "UNAVAILABLE"
        assert f"its process {victim} is stopped" in reason
        assert server.get("/v2/health/ready")[0] == 400
        os.kill(victim, signal.SIGCONT)
        wait_until(lambda: server.model_ready("victim"), 2.0, "the model is ready at once")
        served = len(load.answers)
        wait_until(lambda: any(a.correct for a in load.answers[served:]), 5.0, "requests are answered")
    assert all(a.status == 503 and b"model" in a.body for a in load.failures)
    assert any(b"is stopped" in answer.body for answer in load.failures)
    assert steady.failures == []
    assert server.replicas("victim:1") == [victim]


ENDLESS = """
import time

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(1e6)
"""
ENDLESS_CONFIG = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
parameters { key: "max_execution_secs" value { string_value: "1" } }
"""


def test_an_execution_that_never_returns_has_its_replica_replaced(server: Server, repository: Path) -> None:
    write_python_model(repository, "limited", ENDLESS_CONFIG, ENDLESS)
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60)
    client.load_model("limited")
    (stuck,) = server.processes("limited:1")
    tensor = tritonclient.http.InferInput("INPUT0", [16], "FP32")
    tensor.set_data_from_numpy(VALUES)
    with pytest.raises(InferenceServerException, match=r"'limited_0' has executed for 1\.\d s, more than"):
        client.infer("limited", [tensor])
    wait_until(lambda: not server.model_ready("limited"), 2.0, "the model is not ready")
    wait_until(lambda: server.processes("limited:1") not in ([], [stuck]), 30.0, "a new replica")
    wait_until(lambda: server.model_ready("limited"), 30.0, "the new replica is ready")
    client.unload_model("limited")


@pytest.mark.slow
def test_a_stopped_replica_is_replaced(server: Server, victim: int) -> None:
    os.kill(victim, signal.SIGSTOP)
    wait_until(lambda: server.replicas("victim:1") not in ([], [victim]), 40.0, "a new replica")
    wait_until(lambda: server.model_ready("victim"), 20.0, "the new replica is ready")
