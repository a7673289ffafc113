"""A unary gRPC inference in the front alone, by Python and by the extension, in turn.

    python -m benchmarks.grpc_front

CPU time from the bytes that a client sends to those that it receives, without sockets, without a model: the
requests are answered at once with their tensors. Each figure is the fastest twentieth of many short bursts,
so that it holds on a machine that others use too.
"""

import asyncio
import time
from typing import Any, Final, cast

import hpack
import uvloop
from tritonclient.grpc import service_pb2 as pb

from app.core.tensors import InferResponse
from app.ingress.grpc.front import GrpcFront
from app.ingress.http2.connection import Http2Connection
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.framing import PREFIX
from app.routing.table import ModelState, VersionEntry
from app.settings.fronts import GrpcSettings, Http2Settings
from benchmarks.workloads import MODEL_INFER

PLANES: Final = ("python", "native")
ROUNDS, BURST = 150, 400
UNLIMITED: Final = Http2Settings(max_control_frames=2**31)


class Echo:
    """Service that responds with the request's tensors when it is told to."""

    def __init__(self) -> None:
        self.entry = VersionEntry("identity", 1, ModelState.READY)
        self.waiting: list[Any] = []

    def exiting(self) -> bool:
        return False

    def resolve_single(self, name: str, version: str, endpoint: str) -> VersionEntry:
        return self.entry

    def submit(self, entry: VersionEntry, request: Any, sink: Any) -> "Echo":
        response = InferResponse(request.model_name, "1", request.inputs, request.id)
        self.waiting.append((sink, response))
        return self

    def cancel(self) -> None: ...

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for sink, response in waiting:
            sink(response)


class Sink(asyncio.Transport):
    """Counts what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    def write(self, data: Any) -> None:
        self.sent += len(data)

    def is_closing(self) -> bool:
        return False


class Client:
    """A connection of a server, and what a client of gRPC sends on it."""

    def __init__(self, plane: str) -> None:
        self._service = Echo()
        front = GrpcFront(cast(Any, self._service), GrpcSettings(http2=UNLIMITED), data_plane=plane)
        server = self._server = front.new_server()
        server.state.loop, server.state.now = (loop := asyncio.get_running_loop()), loop.time
        self._connection = Http2Connection(server.state, server.open_call)
        self._sink = Sink()
        self._connection.connection_made(self._sink)
        self._connection.data_received(
            h2.PREFACE + h2.settings_frame({4: 4 << 20}) + h2.window_update(0, 2**30)
        )
        self._stream = 1
        encoder = hpack.Encoder()
        call = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", MODEL_INFER),
            ("content-type", "application/grpc"),
        ]
        self._first, self._block = (encoder.encode([*call, ("te", "trailers")]) for _ in range(2))
        message = pb.ModelInferRequest(model_name="identity", id="17", raw_input_contents=[bytes(64)])
        message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
        data = message.SerializeToString()
        self._data = PREFIX.pack(0, len(data)) + data
        self._connection.data_received(self._request(self._first))
        self._answered()

    def _request(self, block: bytes) -> bytes:
        stream, self._stream = self._stream, self._stream + 2
        headers = h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block)
        return (
            headers
            + h2.window_update(stream, 5)
            + h2.frame(h2.DATA, h2.END_STREAM, stream, self._data)
            + h2.window_update(0, 1)
        )

    def _answered(self) -> None:
        self._service.answer()
        self._connection._output.flush()

    def burst(self, in_flight: int) -> float:
        """Return the microseconds of CPU of a request, with so many in one read."""
        reads = [
            b"".join([self._request(self._block) for _ in range(in_flight)])
            for _ in range(BURST // in_flight)
        ]
        sent = self._sink.sent
        began = time.thread_time()
        for read in reads:
            self._connection.data_received(read)
            self._answered()
        spent = time.thread_time() - began
        assert self._sink.sent - sent > BURST * len(self._data), "some request was refused"
        return spent / BURST * 1e6


async def main() -> None:
    """Print the table."""
    clients = [Client(plane) for plane in PLANES]
    print(
        "| in one read | " + " | ".join(f"{plane}, us" for plane in PLANES) + " | ratio |\n|---|---|---|---|"
    )
    for in_flight in (1, 8):
        rounds = [[client.burst(in_flight) for client in clients] for _ in range(ROUNDS)]
        figures = [sorted(column)[ROUNDS // 20] for column in zip(*rounds, strict=True)]
        print(
            f"| {in_flight} | "
            + " | ".join(f"{figure:.1f}" for figure in figures)
            + f" | {figures[-1] / figures[0]:.2f} |"
        )


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main())
