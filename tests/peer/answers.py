"""What a server answers, in a form that two servers can be compared in."""

import re
from typing import Any

import grpc
from google.protobuf.json_format import MessageToJson
from tritonclient.grpc import service_pb2_grpc

from app.core.hints import MARK
from tests.contract.wire import Wire
from tests.hints import tritons
from tests.peer.grpc_requests import Call
from tests.peer.http_requests import Request

COMPARED_HEADERS = ("Content-Encoding", "Accept-Encoding", "Inference-Header-Content-Length")
TIMEOUT_S = 10.0
_HINT = re.compile(rf'\s*(?:{MARK}(?:[^"\\]|\\.)*)?(?=")')
"""What is behind Triton's text is ours, and blanks at its end say nothing."""


def http_answer(address: str, request: Request) -> str:
    """Status, the headers that a client reads, and the body."""
    wire = Wire(address)
    try:
        answer = wire.send(request.method, request.path, request.content, request.headers)
    except (OSError, ValueError) as error:
        return f"no answer: {type(error).__name__}"
    finally:
        wire.close()
    names = [*COMPARED_HEADERS]
    if answer.status < 400 and answer.body:  # older servers leave the default type on errors
        names.append("Content-Type")
    headers = [f"{name}: {answer.headers[name]}" for name in names if name in answer.headers]
    body = answer.body.decode(errors="backslashreplace")
    return "\n".join([str(answer.status), *headers, _HINT.sub("", body)])


def grpc_answer(channel: grpc.Channel, call: Call) -> str:
    """The messages of the response as JSON, and the status that ended the call."""
    method = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call.method)
    parts = []
    try:
        if call.method == "ModelStreamInfer":
            parts += [_text(message) for message in method(iter(call.messages), timeout=TIMEOUT_S)]
        else:
            parts.append(_text(method(call.messages[0], timeout=TIMEOUT_S)))
    except grpc.RpcError as error:
        parts.append(f"{error.code().name}: {tritons(error.details() or '')}")
    return "\n".join(parts)


def _text(message: Any) -> str:
    text = MessageToJson(message, preserving_proto_field_name=True, sort_keys=True, indent=None)
    return _HINT.sub("", text)
