"""Both ends of a channel without a socket: bytes in, and what becomes of them."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from app.core.errors import not_found
from app.core.inference import Cancel, Sink
from app.core.tensors import InferRequest, InferResponse
from app.transport.channel.client import Channel
from app.transport.channel.handshake import Peer
from app.transport.channel.peer_process import PeerProcess
from app.transport.channel.server import ChannelServer
from app.transport.channel.server_connection import ServerConnection
from app.transport.settings import TransportSettings

CALLS = 4
_NOBODY = Peer(-1, 0)
_LIMITS = {
    "max_frame_bytes": 1 << 16,
    "max_meta_bytes": 1 << 13,
    "read_buffer_bytes": 1 << 10,
    "max_streams": 3,
}


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended = ""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Process:
    """A replica that runs."""

    def obstacle(self) -> str:
        return ""

    def end(self) -> str:
        return ""

    def close(self) -> None: ...


class Handler:
    """Answers by the first character of the request's id."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.held: list[Callable[[InferResponse], None]] = []

    def submit(self, request: InferRequest, sink: Sink) -> Cancel:
        inputs = [
            (t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs if type(t.data) is not int
        ]
        self.seen.append((request.model_name, inputs, request.outputs, request.id, bool(request.deadline)))
        match request.id[:1]:
            case "r":
                raise not_found("no such model")
            case "c":
                raise RuntimeError("a secret")
            case "h":
                self.held.append(sink)
            case "m":
                sink(InferResponse("m", "1", request.inputs, request.id, final=False))
                sink(InferResponse("m", "1", request.inputs, request.id, {"a": 1}))
            case _:
                sink(InferResponse("m", "1", request.inputs, request.id))
        sink(InferResponse("late" if request.id[:1] != "h" else "first", final=False))
        return lambda advice=False: self.seen.append(("advised" if advice else "cancelled", request.id))

    async def control(self, verb: str, payload: Any) -> Any:
        return verb


def _feed(connection: Any, data: bytes, piece: int) -> None:
    view = memoryview(data)
    while view and not connection.closing:
        room = connection.get_buffer(-1)
        size = min(len(room), len(view), piece)
        room[:size], view = view[:size], view[size:]
        connection.buffer_updated(size)


def _outcome(connection: Any, wire: Wire) -> tuple[Any, ...]:
    cause = connection._cause
    return wire.written, wire.ended, type(cause), str(cause), connection.statistics()


async def _serve(plane: str, data: bytes, piece: int) -> Any:
    handler, wire, settings = Handler(), Wire(), TransportSettings(data_plane=plane, **cast(Any, _LIMITS))
    connection = ServerConnection(ChannelServer(handler, bytes(16), settings), settings, None, _NOBODY)
    connection.connection_made(wire)
    _feed(connection, data, piece)
    for reply in handler.held:
        reply(InferResponse("held"))
        reply(InferResponse("late"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    found = _outcome(connection, wire), connection.outstanding, handler.seen
    connection.connection_lost(None)
    return found, handler.seen


def make_channel(plane: str) -> tuple[Channel, Wire]:
    """Return a channel, and the transport that it writes to."""
    wire, settings = Wire(), TransportSettings(data_plane=plane, **cast(Any, _LIMITS))
    channel = Channel(
        "unix:/", settings, None, _NOBODY, cast(PeerProcess, Process()), None, None, lambda cause: cause
    )
    channel.connection_made(wire)
    return channel, wire


async def _call(plane: str, data: bytes, piece: int) -> Any:
    channel, wire = make_channel(plane)
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["message"]))

    def sink(number: int, response: InferResponse) -> None:
        seen.append((number, response))
        if response.id == "raise":
            raise RuntimeError
        if response.id == "close":
            channel.close()
        if response.id == "again":
            channel.send(InferRequest("again", "", ()), lambda again: seen.append(again))

    def sink_of(number: int) -> Callable[[InferResponse], None]:
        return lambda response: sink(number, response)

    for number in range(CALLS):
        channel.send(InferRequest("m", "", (), id=str(number)), sink_of(number))
    if data[:1] == b"\1":
        channel.retire()
    _feed(channel, data, piece)
    await asyncio.sleep(0)
    found = _outcome(channel, wire), channel.outstanding, channel.draining
    channel.connection_lost(None)
    return found, seen


def served(plane: str, data: bytes, piece: int = 1 << 16) -> Any:
    """Return what a server makes of bytes, in pieces of at most `piece`, and what its handler saw."""
    return asyncio.run(_serve(plane, data, piece))


def called(plane: str, data: bytes, piece: int = 1 << 16) -> Any:
    """Return what a client with `CALLS` calls in flight makes of them, and what its sinks saw."""
    return asyncio.run(_call(plane, data, piece))
