"""Process that calls the server of `benchmarks.one_process` and checks the responses.

    python -m benchmarks.callers HTTP_PORT GRPC_PORT [CONNECTIONS [AUTHORIZATION]]

Each line `PROTOCOL ELEMENTS REQUESTS` sends that many requests, one after the other, on each connection of
the protocol, which has one by default; `done` on standard output says that every response equals its request.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
Ask = Callable[[bytes], bytes]


def http_caller(port: int, authorization: str = "") -> Ask:
    """Call by a bare socket, so that a request always has the same packets and cost for the server."""
    connection = socket.create_connection(("127.0.0.1", port), 60)

    def ask(data: bytes) -> bytes:
        connection.sendall(http_request(data, authorization))
        reply = http.client.HTTPResponse(connection)
        reply.begin()
        return reply.read()

    return ask


def http_request(data: bytes, authorization: str = "") -> bytes:
    given = {"name": "INPUT0", "shape": [1, len(data) // 4], "datatype": "FP32"}
    wanted = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    inputs = [{**given, "parameters": {"binary_data_size": len(data)}}]
    header = json.dumps({"inputs": inputs, "outputs": [wanted]}).encode()
    lines = (
        "POST /v2/models/identity/infer HTTP/1.1",
        "Host: localhost",
        *([f"Authorization: {authorization}"] if authorization else []),
        f"Inference-Header-Content-Length: {len(header)}",
        f"Content-Length: {len(header) + len(data)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + header + data


def grpc_caller(port: int, authorization: str = "") -> Ask:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    alone = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[*unlimited, *alone])
    metadata = [("authorization", authorization)] if authorization else None
    call = channel.unary_unary(MODEL_INFER)

    def ask(data: bytes) -> bytes:
        request = service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[data])
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, len(data) // 4])
        # In the header this long one is rounded to 10 s, so a call that begins late has the same header.
        return bytes(call(request.SerializeToString(), timeout=3600, metadata=metadata))

    return ask


def send(ask: Ask, data: bytes, requests: int) -> None:
    for _ in range(requests):
        answer = ask(data)
        if not answer.endswith(data):
            raise ValueError(repr(answer[:500]))


def main() -> None:
    http_port, grpc_port, *more = sys.argv[1:]
    connections, authorization = int(more[0]) if more else 1, "".join(more[1:])
    callers = {
        "http": [http_caller(int(http_port), authorization) for _ in range(connections)],
        "grpc": [grpc_caller(int(grpc_port), authorization) for _ in range(connections)],
    }
    with ThreadPoolExecutor(connections) as threads:
        for line in sys.stdin:
            protocol, elements, requests = line.split()
            data = np.arange(int(elements), dtype=np.float32).tobytes()
            asked = [threads.submit(send, ask, data, int(requests)) for ask in callers[protocol]]
            for one in asked:
                one.result()
            print("done", flush=True)


if __name__ == "__main__":
    main()
