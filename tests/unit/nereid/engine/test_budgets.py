"""A token that has spent its budget is refused by both fronts, until its next period."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.utils

from app.access.tokens import encode, make_token
from nereid.engine.engine import Engine
from nereid.engine.fronts import Fronts
from tests.server import free_port
from tests.unit.nereid.engine.repositories import add_model
from tests.waiting import block_until

# Enough that the kernel's clock shows it.
SPIN = """
import time
end = time.thread_time() + 0.05
while time.thread_time() < end: pass
return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r))]) for r in requests]
"""
ROW = np.array([1.0, 2.0], np.float32)


class Ports(NamedTuple):
    """Where a server listens."""

    http: int
    grpc: int


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Ports]:
    add_model(tmp_path / "models", "spin", SPIN)
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    poor = make_token("poor-secret", name="poor", scope=("infer",), budget="0.01 core-seconds/30d")
    tokens.write_text(f"{encode(poor)}\n{encode(make_token('rich-secret', name='rich', scope=('infer',)))}\n")
    found = Ports(free_port(), free_port())
    flags = {"auth_tokens_file": str(tokens), "allow_metrics": False}
    places = {"http_port": found.http, "grpc_port": found.grpc}
    with Engine.open(model_repository=[str(tmp_path / "models")], **flags, **places) as engine:
        fronts = Fronts(engine)
        fronts.open()
        yield found
        fronts.close(1.0)


def post(port: int, secret: str) -> http.client.HTTPResponse:
    tensor = {"name": "IN", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Authorization": f"Bearer {secret}", "Connection": "close"}
    connection.request("POST", "/v2/models/spin/infer", json.dumps({"inputs": [tensor]}), headers)
    return connection.getresponse()


def test_a_spent_budget_refuses_over_both_fronts(ports: Ports) -> None:
    assert post(ports.http, "poor-secret").status == 200
    block_until(lambda: post(ports.http, "poor-secret").status == 429, "the budget is spent")
    refused = post(ports.http, "poor-secret")
    assert int(refused.headers["Retry-After"]) > 0
    text = json.loads(refused.read())["error"]
    assert "the token 'poor' has spent its budget of 0.01 core-seconds/30d, try again in " in text
    assert post(ports.http, "rich-secret").status == 200
    tensor = tritonclient.grpc.InferInput("IN", [2], "FP32")
    tensor.set_data_from_numpy(ROW)
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{ports.grpc}") as client:
        with pytest.raises(tritonclient.utils.InferenceServerException) as caught:
            client.infer("spin", [tensor], headers={"authorization": "Bearer poor-secret"})
        assert caught.value.status() == str(grpc.StatusCode.RESOURCE_EXHAUSTED)
        client.infer("spin", [tensor], headers={"authorization": "Bearer rich-secret"})
