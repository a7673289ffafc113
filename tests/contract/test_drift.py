"""A model that is watched: its rules for inputs, and its drift over HTTP and gRPC."""

import json
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

from app.protocol.grpc import drift as messages
from tests.contract.conftest import Addresses
from tests.contract.drivers import Driver, Input, Refused
from tests.hints import tritons
from tests.waiting import block_until

WAIT_S = 60.0


def ask_http(address: str, model: str, version: str) -> tuple[str, Any]:
    connection = HTTPConnection(address, timeout=WAIT_S)
    try:
        connection.request("GET", f"/v2/models/{model}{version and f'/versions/{version}'}/drift")
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    return str(response.status), answer if response.status == 200 else answer["error"]


def ask_grpc(address: str, model: str, version: str) -> tuple[str, Any]:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/nereid.DriftService/DriftStatus",
            messages.DriftStatusRequest.SerializeToString,
            messages.DriftStatusResponse.FromString,
        )
        request = messages.DriftStatusRequest(model_name=model, model_version=version)
        try:
            return "200", MessageToDict(call(request, timeout=WAIT_S).status)
        except grpc.RpcError as error:
            return {"NOT_FOUND": "404"}.get(error.code().name, error.code().name), error.details()


@pytest.fixture(params=[ask_http, ask_grpc])
def ask(request: pytest.FixtureRequest, server: Addresses) -> Callable[..., tuple[str, Any]]:
    address = server.http if request.param is ask_http else server.grpc
    return lambda model, version="": request.param(address, model, version)


def row(*values: float) -> list[Input]:
    return [Input("INPUT0", np.array([values], np.float32), "FP32")]


def test_a_value_that_no_input_should_have_is_rejected(client: Driver) -> None:
    for _ in range(3):  # later requests are read by what is known of the first
        with pytest.raises(Refused) as caught:
            client.infer("watched", row(0.5, np.nan), request_id="7")
        assert caught.value.refusal.status in ("400", "INVALID_ARGUMENT")
        text = "[request id: 7] input 'INPUT0' for model 'watched' has NaN at [0,1]"
        assert tritons(caught.value.refusal.text) == text
        answer = client.infer("watched", row(0.5, 0.75))
        assert answer.array("OUTPUT0").tolist() == [[0.5, 0.75]]


def test_the_answer_to_a_tagged_request_says_what_was_found(client: Driver) -> None:
    tagged = client.infer("watched", row(0.5, 1.5))
    assert tagged.parameters["nereid_data_quality"] == "INPUT0:range"
    assert "nereid_data_quality" not in client.infer("watched", row(0.5, 1)).parameters


def test_requests_are_counted_beside_the_reference(
    client: Driver, ask: Callable[..., tuple[str, Any]]
) -> None:
    def counted() -> bool:
        for _ in range(50):
            client.infer("watched", row(0.25, 0.5))
        status, found = ask("watched")
        return status == "200" and found["rows"] > 0

    block_until(counted, "requests are counted", WAIT_S)
    status, found = ask("watched", "1")
    assert (status, found["model"], found["version"]) == ("200", "watched", 1)
    assert (found["source"], found["reference_rows"]) == ("numbers from 0 to 1", 2000)
    names = [feature["feature"]["name"] for feature in found["features"]]
    assert names == ["INPUT0[0]", "INPUT0[1]", "OUTPUT0[0]", "OUTPUT0[1]"]


@pytest.mark.parametrize(("model", "version"), [("simple", ""), ("watched", "9"), ("nobody", "")])
def test_what_has_no_reference_is_not_found(
    ask: Callable[..., tuple[str, Any]], model: str, version: str
) -> None:
    status, text = ask(model, version)
    which = f"version {version} of model '{model}'" if version else f"model '{model}'"
    assert (status, text.partition(":")[0]) == ("404", f"{which} is not watched for drift")
