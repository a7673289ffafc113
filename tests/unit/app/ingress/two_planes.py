"""The same bytes on two connections: to one that recognises requests, and to one where Python reads all.

Without sockets and without an event loop, so that any bytes can be tried, and quickly.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, RegionSlice
from app.ingress.http1.connection import HttpConnection
from app.ingress.http1.exchange import FixedRoute, Route
from app.ingress.rest.front import HttpFront
from app.protocol.http.http1 import RequestHead
from app.settings.fronts import HttpSettings
from tests.unit.app.http_fakes import FakeService


class Loop:
    """Runs callbacks when it is asked to, and timers never."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], object]] = []

    def time(self) -> float:
        return 1.0

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None: ...

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._ready.append(callback)

    def run(self) -> None:
        while self._ready:
            self._ready.pop(0)()


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, parts: Any) -> None:
        self.written += b"".join(parts)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None: ...

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: object) -> None: ...


class Front(HttpFront):
    """A front without management."""

    def _management_route(self, head: RequestHead) -> Route:
        return FixedRoute(404, b"", b"management")


class Plane:
    """One front, and a connection to it at a time.

    Attributes:
        fake: keeps the requests, until `answer`.
        front: the front.
        connection: the open one.
        transport: its transport.
    """

    def __init__(self, data_plane: str, settings: HttpSettings, **more: Any) -> None:
        self.fake = FakeService()
        self.fake.hold = True
        self.front = Front(self.fake, settings, data_plane=data_plane, **more)
        self._state = self.front._server.state
        loop: Any = Loop()
        self.loop = self._state.loop = loop
        self._state.now = loop.time
        self.connect()

    def connect(self) -> None:
        self.fake.held.clear()
        self.connection, self.transport = HttpConnection(self._state), Transport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def disconnect(self) -> None:
        self.connection.connection_lost(None)

    def receive(self, data: bytes) -> list[tuple[InferRequest, Sink]]:
        """Receive bytes; return the requests submitted, with their sinks."""
        self.connection.data_received(data)
        held = list(self.fake.held)
        self.fake.held.clear()
        return held

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        self.loop.run()
        written, self.transport.written = self.transport.written, b""
        return written


Answer = Callable[[InferRequest], list[InferResponse]]


class Planes:
    """Both planes. What one does, the other must do."""

    def __init__(self, settings: HttpSettings | None = None, **more: Any) -> None:
        settings = settings or HttpSettings()
        self.python, self.native = (Plane(name, settings, **more) for name in ("python", "native"))
        self.both = self.python, self.native

    def ask(self, data: bytes, answer: Answer | None = None) -> tuple[bytes, bool]:
        """Receive bytes and answer the requests, on new connections.

        Returns:
            What the client gets, and whether the last request was recognised.
        """
        seen, recognised = [], False
        for plane in self.both:
            plane.connect()
            written, requests, held = b"", [], plane.receive(data)
            while held:
                (request, sink), *rest = held
                assert not rest, "one request at a time"
                recognised = type(sink).__name__ == "Matched"
                requests.append(plain(request))
                for response in (answer or self._identity)(request):
                    sink(response)
                written += plane.taken()
                held = list(plane.fake.held)
                plane.fake.held.clear()
            seen.append((requests, written + plane.taken(), plane.transport.closed))
            plane.disconnect()
        assert seen[0] == seen[1]
        return seen[0][1], recognised

    def _identity(self, request: InferRequest) -> list[InferResponse]:
        answer = self.python.fake.answer(request)
        written = {output.name for output in request.outputs if output.region is not None}
        outputs = []
        for tensor in answer.outputs:
            data = bytes(len(tensor.data)) if isinstance(tensor.data, RegionSlice) else tensor.data
            data = b"" if tensor.name in written else data
            outputs.append(msgspec.structs.replace(tensor, data=data))
        return [msgspec.structs.replace(answer, outputs=tuple(outputs))]

    def learn(self, data: bytes, answer: Answer | None = None) -> None:
        """Have requests like this one recognised."""
        for _ in range(3):
            self.ask(data, answer)
        assert self.ask(data, answer)[1], "it is not recognised"


def plain(request: InferRequest) -> InferRequest:
    """Return a request that equals any other with the same content."""
    inputs = [
        tensor
        if isinstance(tensor.data, RegionSlice)
        else msgspec.structs.replace(tensor, data=bytes(tensor.data))
        for tensor in request.inputs
    ]
    return msgspec.structs.replace(request, inputs=tuple(inputs))


def padded(data: bytes, size: int) -> bytes:
    """Return a request with spaces before its data, so that it has this size."""
    spaces = b" " * (size - len(data))
    head, _, body = data.replace(b'"data": [', b'"data": [' + spaces, 1).partition(b"\r\n\r\n")
    length = b"Content-Length: %d\r\n" % (len(body) - len(spaces))
    return head.replace(length, b"Content-Length: %d\r\n" % len(body)) + b"\r\n\r\n" + body


def alike(*requests: bytes) -> tuple[bytes, ...]:
    """Return the requests in the same size, which those that are recognised have."""
    return tuple(padded(each, max(map(len, requests))) for each in requests)
