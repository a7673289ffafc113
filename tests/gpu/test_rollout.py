"""A rollout whose candidate does not fit into the GPU's memory beside the stable version."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tritonclient.http  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

from tests.server import Server, wait_until  # noqa: E402
from tests.unit.nereid.engine.repositories import DOUBLE, add_model, source  # noqa: E402

CONFIG = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group { kind: KIND_GPU }
"""
MOST = """
import torch
nbytes = int(0.6 * torch.cuda.get_device_properties(0).total_memory)
self.block = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
"""


def rollout(server: Server) -> Any:
    return json.loads(server.get("/v2/models/large/rollout")[1])


@pytest.mark.timeout(240)
def test_a_candidate_without_room_on_the_gpu_is_paused(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    add_model(repository, "large", config=CONFIG, initialize=MOST, files={"rollout.yaml": "steps: [25]"})
    arguments = [f"--model-repository={repository}", "--model-control-mode=explicit"]
    server = Server(arguments, tmp_path / "log").start()
    try:
        client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
        client.load_model("large")
        (repository / "large" / "2").mkdir()
        (repository / "large" / "2" / "model.py").write_text(source(DOUBLE, MOST))
        with contextlib.suppress(InferenceServerException):
            client.load_model("large")
        wait_until(
            lambda: rollout(server)["state"] in ("done", "failed", "aborted", "paused"), 60.0, "its end"
        )
        found = rollout(server)
        assert (found["state"], found["stable"]) == ("paused", 1), found
        assert "no room: " in found["reason"] and "out of memory" in found["reason"], found
        tensor = tritonclient.http.InferInput("IN", [2], "FP32")
        tensor.set_data_from_numpy(np.ones(2, np.float32))
        result = client.infer("large", [tensor])
        assert result.get_response()["model_version"] == "1"
        assert (result.as_numpy("OUT") == 2).all()
    finally:
        server.stop()
