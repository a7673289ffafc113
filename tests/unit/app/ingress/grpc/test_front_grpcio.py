"""What only the front over the grpcio package needs."""

import asyncio
import socket

import grpc
import hpack
import pytest
from tritonclient.grpc import service_pb2 as pb

from app.ingress.grpc.settings import GrpcSettings
from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.grpc import framing as wire
from app.protocol.grpc import http2 as h2
from tests.unit.app.ingress.grpc_running import WAIT_S, running
from tests.waiting import until

SIZE = 40_000
METHOD = "/inference.GRPCInferenceService/ModelInfer"


def message() -> bytes:
    request = pb.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(SIZE)])
    request.inputs.add(name="INPUT", datatype="INT8", shape=[SIZE])
    return bytes(request.SerializeToString())


def stuck_call(url: str) -> socket.socket:
    """A client that asks, and opens no window for the answer."""
    names = {":method": "POST", ":scheme": "http", ":authority": "x", ":path": METHOD, "te": "trailers"}
    head = hpack.Encoder().encode((names | {"content-type": "application/grpc"}).items())
    body = wire.PREFIX.pack(0, len(message())) + message()
    pieces = [body[start : start + 16384] for start in range(0, len(body), 16384)]
    host, _, port = url.rpartition(":")
    connection = socket.create_connection((host, int(port)), WAIT_S)
    connection.sendall(
        h2.PREFACE
        + h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 0})
        + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head)
        + b"".join(h2.frame(h2.DATA, h2.END_STREAM * (piece is pieces[-1]), 1, piece) for piece in pieces)
    )
    return connection


def test_no_more_is_begun_to_be_sent_than_may_wait() -> None:
    """Of an answer that it has begun to send, the package lets go at the end of the connection only."""
    unsent = SendBufferLimit(3 * SIZE)
    with running(GrpcSettings(http2=False), unsent) as server, grpc.insecure_channel(server.url) as channel:
        stuck = stuck_call(server.url)
        asyncio.run(until(lambda: unsent.total > 2 * SIZE))
        ask = channel.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError) as refused:
            ask(message(), timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == "too many bytes of answers wait for clients that do not take them"
        stuck.close()
        asyncio.run(until(lambda: not unsent.total))
        assert len(ask(message(), timeout=WAIT_S)) > SIZE
        asyncio.run(until(lambda: not unsent.total))
