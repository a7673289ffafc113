"""A Python model in an environment of its own, as its clients see it."""

import json
import time
from typing import Any

import numpy as np
import pytest

from tests.contract.drivers import Driver, Input, Refused
from tests.server import Server

NAME = "environment_model"


def ask(client: Driver, values: Any, **parameters: str) -> tuple[Any, dict[str, Any]]:
    response = client.infer(NAME, [Input("INPUT", values, "FP32")], parameters=parameters)
    return response.array("OUTPUT"), json.loads(response.array("ABOUT")[0])


@pytest.mark.parametrize("size", [3, 200_000])
def test_it_executes(client: Driver, size: int) -> None:
    values = np.arange(size, dtype=np.float32)
    output, about = ask(client, values)
    assert (output == values + 1).all()
    assert about["prefix"].endswith(f"/{NAME}/environment")


def test_custom_metrics(http_client: Driver, nereid_server: Server) -> None:
    def lines() -> dict[str, float]:
        status, body = nereid_server.get("/metrics", port=nereid_server.metrics_port)
        assert status == 200
        pairs = [line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in pairs if name.startswith("environment_")}

    ask(http_client, np.ones(3, np.float32))
    before = lines()
    ask(http_client, np.ones(3, np.float32))
    after = lines()
    grown = {name for name in after if after[name] > before[name]}
    assert grown == {
        f'environment_requests{{model="{NAME}"}}',
        'environment_rows_bucket{le="10"}',
        'environment_rows_bucket{le="+Inf"}',
        "environment_rows_sum",
        "environment_rows_count",
    }


def test_its_process_dies_and_comes_back(grpc_client: Driver) -> None:
    one = np.ones(1, np.float32)
    _, before = ask(grpc_client, one)
    with pytest.raises(Refused) as caught:
        ask(grpc_client, one, do="end")
    assert caught.value.refusal.status == "UNAVAILABLE"
    text = f"for model instance '{NAME}_0_0', message: Stub process '{NAME}_0_0' is not healthy."
    assert caught.value.refusal.text.endswith(f"{text} It ended with exit status 1.")
    deadline = time.monotonic() + 60
    while pid_of(grpc_client) in (0, before["pid"]) or not grpc_client.call("is_model_ready", NAME):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pid_of(client: Driver) -> int:
    """The process that executes the model; 0 while it is not started again, for it has died before."""
    try:
        return int(ask(client, np.ones(1, np.float32))[1]["pid"])
    except Refused as refused:
        assert "is not healthy" in refused.refusal.text
        return 0
