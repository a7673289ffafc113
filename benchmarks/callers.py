"""Process that calls the server of `benchmarks.one_process` and checks the responses.

    python -m benchmarks.callers HTTP_PORT GRPC_PORT

Each line `PROTOCOL ELEMENTS REQUESTS` sends that many requests, one after the other, on the protocol's one
connection; `done` on standard output says that every response equals its request.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Callable

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
Ask = Callable[[bytes], bytes]


def http_caller(port: int) -> Ask:
    """Call by a bare socket, so that a request always has the same packets and cost for the server."""
    connection = socket.create_connection(("127.0.0.1", port), 60)

    def ask(data: bytes) -> bytes:
        connection.sendall(http_request(data))
        reply = http.client.HTTPResponse(connection)
        reply.begin()
        return reply.read()

    return ask


def http_request(data: bytes) -> bytes:
    given = {"name": "INPUT0", "shape": [1, len(data) // 4], "datatype": "FP32"}
    wanted = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    inputs = [{**given, "parameters": {"binary_data_size": len(data)}}]
    header = json.dumps({"inputs": inputs, "outputs": [wanted]}).encode()
    lines = (
        "POST /v2/models/identity/infer HTTP/1.1",
        "Host: localhost",
        f"Inference-Header-Content-Length: {len(header)}",
        f"Content-Length: {len(header) + len(data)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + header + data


def grpc_caller(port: int) -> Ask:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[*unlimited, ("grpc.http2.bdp_probe", 0)])
    call = channel.unary_unary(MODEL_INFER)

    def ask(data: bytes) -> bytes:
        request = service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[data])
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, len(data) // 4])
        return bytes(call(request.SerializeToString(), timeout=60))

    return ask


def main() -> None:
    callers = {"http": http_caller(int(sys.argv[1])), "grpc": grpc_caller(int(sys.argv[2]))}
    for line in sys.stdin:
        protocol, elements, requests = line.split()
        data = np.arange(int(elements), dtype=np.float32).tobytes()
        for _ in range(int(requests)):
            answer = callers[protocol](data)
            if not answer.endswith(data):
                raise SystemExit(f"{protocol}: {answer[:500]!r}")
        print("done", flush=True)


if __name__ == "__main__":
    main()
