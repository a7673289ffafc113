"""A good version takes over step by step, bad ones are rolled back, and no client sees an error."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_python_model
from tests.cluster.load import Load
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CONFIG = """
backend: "python" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
"""
POLICY = """
steps: [25]
step: {min_seconds: 1, min_requests: 30, max_seconds: 60}
keep_stable_seconds: 1
"""
SOURCE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        LOAD

    def execute(self, requests):
        EXECUTE
        values = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in values]
"""

BAD = [
    "raise ValueError('no')",
    "return [pb_utils.InferenceResponse([]) for r in requests]",
    """values = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", each)]) for each in values]""",
]
"""Statements of candidates that fail every request: by an error, without an output, by another name."""


def add_version(repository: Path, version: int, load: str = "pass", execute: str = "pass") -> None:
    """Add a version to the model `rolled`, whose load and requests run these statements."""
    source = SOURCE.replace("LOAD", load).replace("EXECUTE", execute)
    if version == 1:
        write_python_model(repository, "rolled", CONFIG, source)
        (repository / "rolled" / "rollout.yaml").write_text(POLICY)
    else:
        (repository / "rolled" / str(version)).mkdir()
        (repository / "rolled" / str(version) / "model.py").write_text(source)


def rollout(server: Server) -> dict[str, Any]:
    status, body = server.get("/v2/models/rolled/rollout")
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def ended(server: Server, state: str) -> dict[str, Any]:
    """Wait for the end of the rollout."""
    wait_until(lambda: rollout(server)["state"] in ("done", "failed", "aborted", "paused"), 60.0, "its end")
    found = rollout(server)
    assert found["state"] == state, found
    return found


def answering(load: Load) -> set[str]:
    """The versions that answer requests without a version now."""
    begun = len(load.answers) + 8  # those on their way may have been sent before
    wait_until(lambda: len(load.answers) > begun + 40, 10.0, "answers")
    bodies = [answer.body for answer in list(load.answers)[begun:]]
    return {json.loads(body[: body.rindex(b"}") + 1])["model_version"] for body in bodies}


def test_a_good_version_is_promoted_and_bad_ones_are_rolled_back(server: Server, repository: Path) -> None:
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    add_version(repository, 1)
    client.load_model("rolled")
    with Load(server.http_port, "rolled", clients=4) as load:
        add_version(repository, 2)
        client.load_model("rolled")
        assert rollout(server)["stable"] == 1 and "2" in answering(load)
        found = ended(server, "done")
        assert answering(load) == {"2"}
        assert found["total"]["candidate"]["ok"] >= 30

        for version, execute in enumerate(BAD, 3):
            add_version(repository, version, execute=execute)
            client.load_model("rolled")
            found = ended(server, "failed")
            assert found["candidate"] == version and found["total"]["candidate"]["failed"] > 0, found
            assert found["total"]["candidate"].get("ok", 0) == 0, found

        add_version(repository, 3 + len(BAD), load="raise ValueError('no weights')")
        with pytest.raises(InferenceServerException, match="no weights"):
            client.load_model("rolled")
        assert "no weights" in ended(server, "failed")["reason"]
        assert answering(load) == {"2"}

        change = json.dumps({"action": "rollback", "why": "ticket 7"}).encode()
        url = f"http://{server.http_url}/v2/repository/models/rolled/rollout"
        with urllib.request.urlopen(url, change, timeout=60) as answer:
            assert "rolled back to version 1 for: ticket 7" in json.load(answer)["reason"]
        assert answering(load) == {"1"}, "what served before, though the policy selects another version"
        history = json.loads(server.get("/v2/models/rolled/rollout/history")[1])
        assert [event["what"] for event in history["events"]].count("promoted") == 1
        assert history["events"][-1]["what"] == "rolled back" and history["version"] == 1
        assert {each["version"] for each in history["rejected"]} == {*range(2, 4 + len(BAD))}
    assert load.failures == []
    assert all(b'"OUTPUT0"' in answer.body for answer in load.answers)
    assert server.model_ready("rolled") and server.ready()
    client.unload_model("rolled")
