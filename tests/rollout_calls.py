"""Calls of the rollout API over HTTP and gRPC, as a client without any library of ours makes them."""

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from app.protocol.grpc import rollout as messages

WAIT_S = 60.0


def ask_http(
    address: str, model: str, change: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[str, Any]:
    """Ask for a rollout, or change it; return the status and the answer, of an error its text."""
    connection = HTTPConnection(address, timeout=WAIT_S)
    try:
        if change is None:
            connection.request("GET", f"/v2/models/{model}/rollout", headers=headers or {})
        else:
            path = f"/v2/repository/models/{model}/rollout"
            connection.request("POST", path, json.dumps(change), headers or {})
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    return str(response.status), answer if response.status == 200 else answer["error"]


def ask_grpc(
    address: str, model: str, change: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[str, Any]:
    """Do the same over gRPC; the fields of `change` are those of the HTTP body."""
    if change is None:
        method, request = "RolloutStatus", messages.RolloutStatusRequest(model_name=model)
    else:
        method, request = "RolloutChange", messages.RolloutChangeRequest(model_name=model, **change)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/nereid.RolloutService/{method}",
            type(request).SerializeToString,
            messages.RolloutStatusResponse.FromString,
        )
        try:
            answer = call(request, timeout=WAIT_S, metadata=tuple((headers or {}).items()))
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", MessageToDict(answer.status)


ASK = {"http": ask_http, "grpc": ask_grpc}
