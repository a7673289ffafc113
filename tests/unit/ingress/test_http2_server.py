"""The HTTP/2 server: grpcio as the client for calls, a bare socket for what no client would send."""

import asyncio
import gzip
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import hpack
import pytest

from app.ingress.grpc_call import DirectCall
from app.ingress.http2_age import ConnectionAge
from app.ingress.http2_output import Http2Output
from app.ingress.http2_server import Http2Server, Http2Settings
from app.protocol import grpc_http2 as wire
from app.protocol import http2 as h2

WAIT_S = 10.0


def _decoded(block: bytes) -> Any:
    return hpack.Decoder().decode(block)


class Handlers:
    """An echo service; `cancelled` is set when a call that never answers is cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.started = threading.Semaphore(0)
        self.held: DirectCall | None = None

    async def echo(self, message: bytes, context: Any) -> bytes:
        return message

    async def blow(self, message: bytes, context: Any) -> bytes:
        return bytes(int(message))

    async def fail(self, message: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "größer als 100%")
        raise AssertionError

    async def crash(self, message: bytes, context: Any) -> bytes:
        raise RuntimeError("secret")

    async def tell(self, message: bytes, context: Any) -> bytes:
        remaining = context.time_remaining()
        return f"{dict(context.invocation_metadata())['x-own']} {remaining}".encode()

    async def hang(self, message: bytes, context: Any) -> bytes:
        self.started.release()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for message in requests:
            await context.write(message)
            await context.write(message)

    async def generate(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            yield message * 2

    def direct(self, call: DirectCall, message: bytes) -> None:
        """Answers at once, later, with an error or never, as the message says."""
        loop = asyncio.get_running_loop()
        kind = message[:5]
        if kind == b"later":
            loop.call_later(0.01, call.answer, (message[:1], memoryview(message)[1:]))
        elif kind == b"never":
            self.held = call
            call.on_cancel = self.cancelled.set
            self.started.release()
        elif kind == b"wrong":
            call.fail(5, "größer als 100%")
        else:
            call.answer((message,))

    def handler(self) -> Any:
        unary = ("echo", "blow", "fail", "crash", "tell", "hang")
        methods = {name: grpc.unary_unary_rpc_method_handler(getattr(self, name)) for name in unary}
        for name in ("both", "generate"):
            methods[name] = grpc.stream_stream_rpc_method_handler(getattr(self, name))
        return grpc.method_handlers_generic_handler("test.Test", methods)


class Running:
    """A server on a loop of its own."""

    def __init__(self, settings: Http2Settings) -> None:
        self.handlers = Handlers()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server: Http2Server = self.run(self._start(settings))
        self.port: int = self.run(self.server.listen("127.0.0.1", 0))

    async def _start(self, settings: Http2Settings) -> Http2Server:
        server = Http2Server(settings)
        server.add_generic_rpc_handlers([self.handlers.handler()])
        server.add_direct_method("/test.Test/direct", self.handlers.direct)
        return server

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def stop(self) -> None:
        self.run(self.server.stop(0.1))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)


Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Running] = []

    def make(**settings: Any) -> Running:
        made.append(Running(Http2Settings(**settings)))
        return made[-1]

    yield make
    for running in made:
        running.stop()


@pytest.fixture
def running(start: Start) -> Running:
    return start()


@pytest.fixture
def channel(running: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(
        f"127.0.0.1:{running.port}",
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    ) as channel:
        yield channel


def unary(channel: grpc.Channel, name: str, message: bytes = b"", **options: Any) -> bytes:
    answer: bytes = channel.unary_unary(f"/test.Test/{name}")(message, timeout=WAIT_S, **options)
    return answer


@pytest.mark.parametrize("size", [0, 1, 16_000, 70_000, 5_000_000, 40_000_000])
def test_messages_of_all_sizes(channel: grpc.Channel, size: int) -> None:
    message = bytes(i * 7 % 256 for i in range(min(size, 4096))) * (size // 4096 + 1)
    assert unary(channel, "echo", message[:size]) == message[:size]


def test_a_large_answer_to_a_small_request(channel: grpc.Channel) -> None:
    assert unary(channel, "blow", b"20000000") == bytes(20_000_000)


def test_statuses(channel: grpc.Channel) -> None:
    for name, code, text in (
        ("fail", grpc.StatusCode.NOT_FOUND, "größer als 100%"),
        (
            "crash",
            grpc.StatusCode.UNKNOWN,
            "the server failed to handle the request; its log has the details",
        ),
        ("nonesuch", grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            unary(channel, name)
        assert (caught.value.code(), caught.value.details()) == (code, text)
    assert unary(channel, "echo", b"still there") == b"still there"


def test_metadata_and_deadlines(running: Running, channel: grpc.Channel) -> None:
    told = channel.unary_unary("/test.Test/tell")(b"", timeout=5, metadata=(("x-own", "7"),))
    own, remaining = told.split()
    assert own == b"7" and 3 < float(remaining) <= 5
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/test.Test/hang")(b"", timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert running.handlers.cancelled.wait(WAIT_S)


def test_a_cancelled_call_reaches_its_handler(running: Running, channel: grpc.Channel) -> None:
    call = channel.unary_unary("/test.Test/hang").future(b"")
    assert running.handlers.started.acquire(timeout=WAIT_S)
    call.cancel()
    assert running.handlers.cancelled.wait(WAIT_S)
    assert not running.server.calls and not running.server.buffered


@pytest.mark.parametrize("size", [0, 16_379, 16_380, 65_531, 65_536, 5_000_000])
@pytest.mark.parametrize("when", [b"now", b"later"])
def test_calls_without_a_task(channel: grpc.Channel, when: bytes, size: int) -> None:
    message = (when if size else b"") + bytes(i * 7 % 256 for i in range(256)) * (size // 256)
    for _ in range(3):
        assert unary(channel, "direct", message) == message
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "direct", b"wrong")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "größer als 100%")


def test_many_calls_without_a_task_at_once(running: Running, channel: grpc.Channel) -> None:
    direct = channel.unary_unary("/test.Test/direct")
    calls = [direct.future(b"later" + bytes([i % 256]) * i * 50) for i in range(300)]
    assert [call.result(WAIT_S) for call in calls] == [
        b"later" + bytes([i % 256]) * i * 50 for i in range(300)
    ]
    assert not running.server.calls and not running.server.buffered


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_call_without_a_task_learns_that_it_is_over(
    running: Running, channel: grpc.Channel, end: str
) -> None:
    direct = channel.unary_unary("/test.Test/direct")
    call = direct.future(b"never", timeout=0.3 if end == "deadline" else None)
    assert running.handlers.started.acquire(timeout=WAIT_S)
    if end == "cancel":
        call.cancel()
    assert running.handlers.cancelled.wait(WAIT_S)
    held = running.handlers.held
    assert held is not None and held.over
    running.loop.call_soon_threadsafe(held.answer, (b"too late",))
    assert unary(channel, "direct", b"the next") == b"the next"
    assert call.code() is (
        grpc.StatusCode.CANCELLED if end == "cancel" else grpc.StatusCode.DEADLINE_EXCEEDED
    )
    assert not running.server.calls and not running.server.buffered


def test_compressed_calls_without_a_task(start: Start) -> None:
    running = start(compress=True)
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        for compression in (None, grpc.Compression.Gzip):
            assert unary(channel, "direct", b"abc" * 1000, compression=compression) == b"abc" * 1000


@pytest.mark.parametrize("name", ["both", "generate"])
def test_streams(channel: grpc.Channel, name: str) -> None:
    sent = [bytes([i]) * (i * 3000) for i in range(40)]
    answers = list(channel.stream_stream(f"/test.Test/{name}")(iter(sent), timeout=WAIT_S))
    expected = (
        [m for message in sent for m in (message, message)] if name == "both" else [m * 2 for m in sent]
    )
    assert answers == expected


def test_compressed_requests(channel: grpc.Channel) -> None:
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        assert unary(channel, "echo", b"abc" * 1000, compression=compression) == b"abc" * 1000


def test_a_message_above_the_limit(start: Start) -> None:
    running = start(max_message_size=1000)
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        with pytest.raises(grpc.RpcError, match="larger than max"):
            unary(channel, "echo", bytes(2000))
        assert unary(channel, "echo", bytes(1000)) == bytes(1000)
    assert not running.server.buffered


def test_a_thousand_calls_at_once(running: Running, channel: grpc.Channel) -> None:
    echo = channel.unary_unary("/test.Test/echo")
    futures = [echo.future(str(i).encode(), timeout=WAIT_S) for i in range(1000)]
    assert [int(future.result()) for future in futures] == list(range(1000))


def test_many_threads_on_many_connections(running: Running) -> None:
    def work(number: int) -> bool:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{running.port}", options) as channel:
            return all(unary(channel, "echo", f"{number} {i}".encode() * 999) for i in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_stop_finishes_what_is_under_way(start: Start) -> None:
    running = start()
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        call = channel.stream_stream("/test.Test/both")
        gate = threading.Event()

        def requests() -> Iterator[bytes]:
            yield b"1"
            gate.wait(WAIT_S)
            yield b"2"

        answers = call(requests(), timeout=WAIT_S)
        assert next(answers) == b"1"
        stopping = asyncio.run_coroutine_threadsafe(running.server.stop(WAIT_S), running.loop)
        time.sleep(0.1)
        assert not stopping.done()
        gate.set()
        assert list(answers) == [b"1", b"2", b"2"]
        stopping.result(WAIT_S)


class Raw:
    """A client that sends what it likes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.encoder = hpack.Encoder()
        self.reader = h2.FrameReader(1 << 24)
        self.send(h2.PREFACE + h2.settings_frame({}))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def call(self, stream: int, name: str = "echo", flags: int = 0) -> bytes:
        path = f"/test.Test/{name}"
        block = self.encoder.encode(
            [(":method", "POST"), (":path", path), ("content-type", "application/grpc")]
        )
        return h2.frame(h2.HEADERS, h2.END_HEADERS | flags, stream, block)

    def frames(self, until: Callable[[h2.Frame], bool]) -> list[h2.Frame]:
        """Frames up to the first that is wanted, or to the end of the connection."""
        found: list[h2.Frame] = []
        while True:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return found
            for frame in self.reader.feed(data):
                found.append(frame)
                if until(frame):
                    return found

    def goaway(self) -> tuple[int, bytes]:
        """Code and text of the GOAWAY that ends the connection."""
        frames = self.frames(lambda frame: frame.kind == h2.GOAWAY)
        assert frames[-1].kind == h2.GOAWAY, frames[-3:]
        return int.from_bytes(frames[-1].payload[4:8], "big"), frames[-1].payload[8:]


@pytest.fixture
def raw(running: Running) -> Iterator[Raw]:
    made = Raw(running.port)
    yield made
    made.socket.close()


def many(frame: bytes, count: int) -> bytes:
    return frame * count


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("rapid reset", None, h2.ENHANCE_YOUR_CALM),
        ("settings flood", many(h2.settings_frame({}), 25_000), h2.ENHANCE_YOUR_CALM),
        ("empty frames", many(h2.frame(99, 0, 0), 25_000), h2.ENHANCE_YOUR_CALM),
        ("pings", many(h2.frame(h2.PING, 0, 0, bytes(8)), 10), h2.ENHANCE_YOUR_CALM),
        ("continuations", h2.frame(h2.HEADERS, 0, 1, b"a") + many(h2.frame(9, 0, 1, b"a" * 9000), 9),
         h2.ENHANCE_YOUR_CALM),
        ("interrupted headers", h2.frame(h2.HEADERS, 0, 1, b"") + h2.settings_frame({}), h2.PROTOCOL_ERROR),
        ("continuation of nothing", h2.frame(h2.CONTINUATION, 0, 1, b""), h2.PROTOCOL_ERROR),
        ("data on an idle stream", h2.frame(h2.DATA, 0, 7, b"x"), h2.PROTOCOL_ERROR),
        ("even stream", h2.frame(h2.HEADERS, h2.END_HEADERS, 2, b"\x88"), h2.PROTOCOL_ERROR),
        ("bad header block", h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff"), h2.COMPRESSION_ERROR),
        ("window overflow", h2.window_update(0, h2.MAX_WINDOW), h2.FLOW_CONTROL_ERROR),
        ("zero window update", h2.window_update(0, 0), h2.FLOW_CONTROL_ERROR),
        ("huge frame", h2.frame_head(1 << 23, h2.DATA, 0, 1), h2.FRAME_SIZE_ERROR),
        ("push", h2.frame(h2.PUSH_PROMISE, 0, 1, bytes(4)), h2.PROTOCOL_ERROR),
    ],
)  # fmt: skip
def test_what_ends_a_connection(start: Start, name: str, data: bytes | None, code: int) -> None:
    # A slow machine takes more than a second for a flood: the limits are a fraction of it.
    running = start(max_control_frames=1000, max_resets=50)
    raw = Raw(running.port)
    if data is None:
        data = b"".join(
            raw.call(stream, "hang") + h2.rst_stream(stream, h2.CANCEL) for stream in range(1, 2401, 2)
        )
    raw.send(data)
    assert raw.goaway()[0] == code
    other = Raw(running.port)
    other.send(other.call(1) + h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 2) + b"ok"))
    frames = other.frames(lambda frame: bool(frame.flags & h2.END_STREAM) and frame.stream == 1)
    assert any(frame.kind == h2.DATA and frame.payload[5:] == b"ok" for frame in frames)
    other.socket.close()
    raw.socket.close()
    assert not running.server.buffered


def test_a_server_stops_while_a_failed_connection_lingers(running: Running, raw: Raw) -> None:
    raw.send(h2.frame(h2.PUSH_PROMISE, 0, 1, bytes(4)))
    assert raw.goaway()[0] == h2.PROTOCOL_ERROR
    running.run(running.server.stop(0.1))


async def test_nothing_is_written_after_the_end() -> None:
    """Answers to calls that were under way when their connection failed."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    unheard: list[object] = []
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    output = Http2Output(loop, ConnectionAge(0.0), lambda stream: None)
    output.transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    output.put(b"before")
    output.end()
    output.put(b"after")
    await asyncio.sleep(0)
    theirs.settimeout(WAIT_S)
    assert await asyncio.to_thread(theirs.recv, 100) == b"before"
    assert await asyncio.to_thread(theirs.recv, 100) == b""
    assert not unheard
    output.transport.abort()
    theirs.close()


def test_pings_of_a_client_that_receives_much_are_welcome(raw: Raw) -> None:
    """gRPC's clients measure so how large a window they need."""
    raw.send(raw.call(1, "blow") + h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 6) + b"900000"))
    for _ in range(20):
        raw.send(h2.frame(h2.PING, 0, 0, bytes(8)))
        assert raw.frames(lambda frame: frame.kind == h2.PING)[-1].flags == h2.ACK
        raw.send(h2.window_update(0, 20_000) + h2.window_update(1, 20_000))
        assert raw.frames(lambda frame: frame.kind == h2.DATA)[-1].kind == h2.DATA


def test_something_else_than_http2(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), WAIT_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b"".join(iter(lambda: client.recv(4096), b""))
    assert b"not an HTTP/2 client" in received


def test_requests_that_are_no_calls(raw: Raw) -> None:
    block = hpack.Encoder().encode([(":method", "GET"), (":path", "/")])
    raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, block))
    frames = raw.frames(lambda frame: frame.stream == 1)
    assert _decoded(frames[-1].payload) == [(":status", "405")]


def test_streams_above_the_limit_are_refused(start: Start) -> None:
    running = start(max_streams=2)
    raw = Raw(running.port)
    raw.send(b"".join(raw.call(stream, "hang", 0) for stream in (1, 3, 5)))
    frames = raw.frames(lambda frame: frame.kind == h2.RST_STREAM)
    assert frames[-1].stream == 5 and frames[-1].payload == h2.REFUSED_STREAM.to_bytes(4, "big")
    raw.socket.close()


def test_a_window_that_grows_byte_by_byte(raw: Raw) -> None:
    raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 0}))
    raw.send(raw.call(1) + h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 4) + b"abcd"))
    raw.frames(lambda frame: frame.kind == h2.HEADERS)
    pieces = []
    for _ in range(9):
        raw.send(h2.window_update(1, 1))
        pieces.append(raw.frames(lambda frame: frame.kind == h2.DATA)[-1].payload)
    assert b"".join(pieces) == wire.PREFIX.pack(0, 4) + b"abcd" and set(map(len, pieces)) == {1}
    raw.send(h2.window_update(1, 5))


def test_a_compressed_bomb(start: Start) -> None:
    running = start(max_message_size=10_000)
    raw = Raw(running.port)
    block = raw.encoder.encode(
        [(":method", "POST"), (":path", "/test.Test/echo"), ("content-type", "application/grpc"),
         ("grpc-encoding", "gzip")]
    )  # fmt: skip
    bomb = gzip.compress(bytes(5_000_000))
    raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block))
    raw.send(h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(1, len(bomb)) + bomb))
    frames = raw.frames(lambda frame: frame.stream == 1)
    assert dict(_decoded(frames[-1].payload))["grpc-status"] == "8"
    raw.socket.close()


def test_an_old_connection_is_asked_to_leave(start: Start) -> None:
    running = start(max_age_s=0.1)
    raw = Raw(running.port)
    code, _ = raw.goaway()
    assert code == h2.NO_ERROR and raw.frames(lambda frame: False) == []


def test_a_silent_client_is_pinged_and_cut_off(start: Start) -> None:
    running = start(keepalive_s=0.1, keepalive_timeout_s=0.1, keepalive_without_calls=True)
    raw = Raw(running.port)
    frames = raw.frames(lambda frame: False)
    assert frames[-1].kind == h2.PING
