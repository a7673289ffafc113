"""A connection of a gRPC front without a socket, on a clock and a loop of the test."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, cast

from tritonclient.grpc import service_pb2 as pb

from app.core.errors import invalid_arg
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.ingress.grpc.front import GrpcFront
from app.ingress.http2.call import UnaryCall
from app.ingress.http2.connection import Http2Connection
from app.ingress.http2.stream import Stream
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.framing import PREFIX, header
from app.routing.table import ModelState, VersionEntry
from app.settings.fronts import GrpcSettings, Http2Settings

MODEL_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
PAIRS: Final = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", MODEL_INFER),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


class Loop:
    """An event loop that runs what is ready when it is told to, and no timers."""

    def __init__(self) -> None:
        self.now = 100.0
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, run: Callable[..., object], *args: Any) -> None:
        self._ready.append((run, args))

    def call_later(self, delay: float, run: Callable[..., object], *args: Any) -> "Timer":
        self.timers.append(Timer(delay, run, args))
        return self.timers[-1]

    def run_in_executor(self, executor: object, run: Callable[..., object], *args: Any) -> Future[object]:
        done: Future[object] = Future()
        self.call_soon(_finish, done, run, args)
        return done

    def run_ready(self) -> None:
        while self._ready:
            run, args = self._ready.popleft()
            run(*args)


def _finish(done: Future[object], run: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        done.set_result(run(*args))
    except Exception as error:
        done.set_exception(error)


class Timer:
    """A callback that runs when the test wants."""

    def __init__(self, delay: float, run: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.delay = delay
        self._run: tuple[Callable[..., object], tuple[Any, ...]] | None = (run, args)

    @property
    def over(self) -> bool:
        return self._run is None

    def cancel(self) -> None:
        self._run = None

    def expire(self) -> None:
        if self._run is not None:
            (run, args), self._run = self._run, None
            run(*args)


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.events: list[str] = []

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += b"".join(pieces)

    def is_closing(self) -> bool:
        return not {"close", "abort"}.isdisjoint(self.events)

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.events.append(name)


class Service:
    """Keeps the requests until they are answered, with their inputs as outputs."""

    def __init__(self) -> None:
        self.entry = VersionEntry("m", 1, ModelState.READY)
        self.requests: list[InferRequest] = []
        self.waiting: list[tuple[Any, InferRequest]] = []
        self.cancelled: list[str] = []

    def exiting(self) -> bool:
        return False

    def resolve_single(self, name: str, version: str, endpoint: str) -> VersionEntry:
        return self.entry

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Any) -> Any:
        if request.model_name == "refused":
            raise invalid_arg("refused")
        self.requests.append(request)
        self.waiting.append((sink, request))
        return _Submitted(self, request.id)


class _Submitted:
    def __init__(self, service: Service, request_id: str) -> None:
        self._service, self._id = service, request_id

    def cancel(self) -> None:
        self._service.cancelled.append(self._id)


def response_to(request: InferRequest) -> InferResponse:
    if request.id == "fail":
        return failed(invalid_arg("bad request"), request.id)
    outputs = tuple(Tensor("O" + t.name, t.datatype, t.shape, t.data) for t in request.inputs)
    return InferResponse(request.model_name, "1", outputs, request.id)


class Side:
    """A server of one data plane, and a connection to it."""

    connection: Http2Connection

    def __init__(self, data_plane: str, **settings: Any) -> None:
        self.service, self.loop, self.transport = Service(), Loop(), Transport()
        grpc = GrpcSettings(http2=Http2Settings(**settings))
        front = GrpcFront(cast(Any, self.service), grpc, data_plane=data_plane)
        self.server = front.new_server()
        self.decode = front._decode
        self.state = self.server.state
        self.state.loop, self.state.now = cast(Any, self.loop), self.loop.time
        self.connect()

    def connect(self) -> None:
        """Open a connection, in place of the one that there was."""
        self.transport = Transport()
        self.connection = Http2Connection(self.state, self.server.open_call)
        self.connection.connection_made(cast(Any, self.transport))

    def disconnect(self) -> None:
        """Lose the connection, which leaves nothing behind."""
        self.connection.connection_lost(None)
        self.loop.run_ready()
        assert (self.state.calls, self.state.buffered, self.state.send_buffers.total) == (0, 0, 0)
        self.service.waiting.clear()
        self.loop.timers.clear()
        self.forget()

    def forget(self) -> None:
        """Forget what has happened, but what is still to be."""
        self.transport.written.clear()
        self.transport.events.clear()
        self.service.requests.clear()
        self.service.cancelled.clear()
        self.loop.timers[:] = [timer for timer in self.loop.timers if not timer.over]

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.loop.run_ready()

    def answer(self, make: Callable[[InferRequest], InferResponse] = response_to) -> None:
        """Answer the request that has waited for longest, if any."""
        if self.service.waiting:
            sink, request = self.service.waiting.pop(0)
            sink(make(request))
            self.loop.run_ready()

    def expire(self) -> None:
        """Let the timer that was set first expire."""
        for timer in self.loop.timers:
            if not timer.over:
                return timer.expire()

    def pass_time(self, seconds: float) -> None:
        self.loop.now += seconds
        self.connection.check_time(self.loop.now)
        self.loop.run_ready()

    def close(self) -> None:
        """Lose the connection."""
        self.connection.connection_lost(None)
        self.loop.run_ready()
        self.state.close()

    def goaway(self) -> bytes:
        """Return code and text of why the connection failed; nothing if it has not."""
        if not self.connection._failed:
            return b""
        frames = h2.FrameReader(1 << 24).feed(bytes(self.transport.written))
        sent = [f.payload for f in frames if isinstance(f, h2.Frame) and f.kind == h2.GOAWAY]
        return sent[-1][4:] if sent else b"closed before"

    def seen(self) -> dict[str, object]:
        """Return all that is to be the same on either plane."""
        connection, output = self.connection, self.connection._output
        return {
            "sent": bytes(self.transport.written),
            "events": self.transport.events,
            "timers": [(timer.delay, timer.over) for timer in self.loop.timers],
            "requests": [plain(request) for request in self.service.requests],
            "cancelled": self.service.cancelled,
            "counts": (self.state.calls, self.state.buffered, self.state.send_buffers.total),
            "connection": values(
                connection, ("_last_stream", "_received", "_draining", "_failed", "_block_size")
            ),
            "output": values(
                output, ("window", "initial_window", "frame_size", "queued", "drained", "written", "corked")
            ),
            "frames": len(output.frames),
            "waiting": [stream.id for stream in output.waiting],
            "keepalive": values(connection._keepalive, ("sent", "_second", "_counts", "heard", "ping_sent")),
            "streams": {number: seen_stream(stream) for number, stream in connection._streams.items()},
        }


def values(of: object, names: tuple[str, ...]) -> list[object]:
    return [getattr(of, name) for name in names]


def seen_stream(stream: Stream) -> object:
    call = stream.receiver
    found = values(stream, ("id", "window", "received", "ended", "over", "trailers", "_drained"))
    found.append(stream.ended or stream._credit)  # of an ended one none is given
    found.append([bytes(piece) for piece in stream.queue or ()])
    if isinstance(call, UnaryCall):
        found += values(call, ("over", "_buffered", "_headers_sent", "_message", "_head"))
        found += [call._reader is None, call._timer is None, bool(call.deadline), call.arriving()]
    return found


def plain(request: InferRequest) -> object:
    """Return a request without its deadline, which is of the machine's clock, and with its data as bytes.

    C has a view of some that Python copies.
    """
    inputs = [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs]
    others = [
        getattr(request, name) for name in request.__struct_fields__ if name not in ("inputs", "deadline")
    ]
    return inputs, others, bool(request.deadline)


def headers(*more: tuple[str, str], path: str = MODEL_INFER) -> bytes:
    """Return a header block that leaves the table of the connection as it is."""
    pairs = [(name, path if name == ":path" else value) for name, value in PAIRS]
    return b"".join(header(name, value) for name, value in (*pairs, *more))


def message(size: int = 8, request_id: str = "7", model: str = "m") -> bytes:
    """Return a request, as DATA."""
    made = pb.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[bytes(size)])
    made.inputs.add(name="I", datatype="UINT8", shape=[1, size])
    made.outputs.add(name="OI")
    data = bytes(made.SerializeToString())
    return PREFIX.pack(0, len(data)) + data


def call(stream: int, data: bytes, block: bytes, size: int = 1 << 20) -> bytes:
    """Return the frames of a call, as clients of gRPC send them; DATA in frames of at most `size` bytes."""
    opened = h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block) + h2.window_update(stream, 5)
    cut = [data[start : start + size] for start in range(0, len(data), size)] or [b""]
    sent = [h2.frame(h2.DATA, 0, stream, piece) for piece in cut[:-1]]
    sent.append(h2.frame(h2.DATA, h2.END_STREAM, stream, cut[-1]))
    return opened + b"".join(sent) + h2.window_update(0, len(data))


def tensors(*shapes: tuple[int, ...], data: Any = b"abcd", name: str = "O") -> tuple[Tensor, ...]:
    return tuple(Tensor(name, "FP32", shape, data) for shape in shapes)


RESPONSE = InferResponse("m", "1", tensors((1, 300)), "7")


BLOCK = headers()
BLOCKS = (
    BLOCK,
    headers(("grpc-timeout", "5S")),
    headers(("grpc-accept-encoding", "gzip"), ("x-own", "1")),
    headers(("te", "trailers"), ("k-bin", "AA")),
    headers(path="/unknown"),
    headers(("content-type", "text/plain")),
    b"\xff\xff\xff",
)
GREETING = h2.PREFACE + h2.settings_frame({})


class Pair:
    """A connection of each data plane."""

    def __init__(self, **limits: Any) -> None:
        self.sides = [Side(plane, **limits) for plane in ("python", "native")]
        self.receive(
            GREETING + b"".join(call(2 * i + 1, message(), block) for i, block in enumerate(BLOCKS[:6]))
        )

    def receive(self, data: bytes) -> None:
        for side in self.sides:
            side.receive(data)

    def answer(self, make: Callable[[InferRequest], InferResponse] = response_to) -> None:
        for side in self.sides:
            side.answer(make)

    def compare(self) -> None:
        python, native = (side.seen() for side in self.sides)
        assert python == native

    def failed(self) -> bool:
        """Return whether the connections have failed, for the same reason."""
        python, native = (side.goaway() for side in self.sides)
        assert python == native
        return bool(python)

    def close(self) -> None:
        for side in self.sides:
            side.close()
        self.compare()


def taken(pair: Pair, data: bytes) -> int:
    """Return how many bytes are handled by the extension; both sides receive all."""
    native, handled = pair.sides[1], []
    connection: Any = native.connection
    receive = connection._compiled.receive

    class Watched:
        def receive(self, of: object, received: bytes) -> int:
            handled.append(receive(of, received))
            return int(handled[-1])

    connection._compiled = Watched()
    pair.receive(data)
    connection._compiled = native.state.compiled
    pair.compare()
    return sum(handled)
