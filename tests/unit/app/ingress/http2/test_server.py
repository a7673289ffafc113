"""The HTTP/2 server, called by grpcio's client."""

import asyncio
import random
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.unit.app.ingress.http2.http2_running import UNTIL_IT_ARRIVES, WAIT_S, Running, Start
from tests.waiting import let_run, until


def unary(channel: grpc.Channel, name: str, message: bytes = b"", **options: Any) -> bytes:
    answer: bytes = channel.unary_unary(f"/test.Test/{name}")(message, timeout=WAIT_S, **options)
    return answer


@pytest.mark.parametrize("size", [0, 1, 16_000, 70_000, 5_000_000, 40_000_000])
def test_echo_of_all_sizes(channel: grpc.Channel, size: int) -> None:
    message = bytes(i * 7 % 256 for i in range(min(size, 4096))) * (size // 4096 + 1)
    assert unary(channel, "echo", message[:size]) == message[:size]


def test_large_response_to_a_small_request(channel: grpc.Channel) -> None:
    assert unary(channel, "blow", b"20000000") == bytes(20_000_000)


def test_errors_become_statuses(channel: grpc.Channel) -> None:
    for name, code, text in (
        ("fail", grpc.StatusCode.NOT_FOUND, "größer als 100%"),
        (
            "crash",
            grpc.StatusCode.INTERNAL,
            "the server failed to handle the request; its log has the details",
        ),
        ("nonesuch", grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            unary(channel, name)
        assert (caught.value.code(), caught.value.details()) == (code, text)
    assert unary(channel, "echo", b"still there") == b"still there"


def test_a_call_that_cannot_be_opened_ends_no_other(running: Running, channel: grpc.Channel) -> None:
    other = channel.unary_unary("/test.Test/direct").future(b"never", timeout=WAIT_S)
    assert running.handlers.started.acquire(timeout=WAIT_S)
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            unary(channel, "unopened")
        assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert running.handlers.held is not None
    running.run(answer_later(running.handlers.held))
    assert other.result() == b"at last"


async def answer_later(call: Any) -> None:
    call.respond((b"at last",))


def test_call_has_metadata_and_deadline(running: Running, channel: grpc.Channel) -> None:
    response = channel.unary_unary("/test.Test/describe")(b"", timeout=60, metadata=(("x-own", "7"),))
    own, remaining = response.split()
    assert own == b"7" and 30 < float(remaining) < 60.2  # grpcio rounds up
    for timeout in UNTIL_IT_ARRIVES:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/test.Test/hang")(b"", timeout=timeout)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if running.handlers.started.acquire(blocking=False):
            break
    assert running.handlers.cancelled.wait(WAIT_S)


def test_cancellation_reaches_the_handler(running: Running, channel: grpc.Channel) -> None:
    call = channel.unary_unary("/test.Test/hang").future(b"")
    assert running.handlers.started.acquire(timeout=WAIT_S)
    call.cancel()
    assert running.handlers.cancelled.wait(WAIT_S)
    assert not running.server.state.calls and not running.server.state.buffered


@pytest.mark.parametrize("size", [0, 16_379, 16_380, 65_531, 65_536, 5_000_000])
@pytest.mark.parametrize("when", [b"now", b"later"])
def test_callback_calls(channel: grpc.Channel, when: bytes, size: int) -> None:
    message = (when if size else b"") + bytes(i * 7 % 256 for i in range(256)) * (size // 256)
    for _ in range(3):
        assert unary(channel, "direct", message) == message
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "direct", b"wrong")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "größer als 100%")


def test_many_callback_calls_at_once(running: Running, channel: grpc.Channel) -> None:
    direct = channel.unary_unary("/test.Test/direct")
    calls = [direct.future(b"later" + bytes([i % 256]) * i * 50) for i in range(300)]
    assert [call.result(WAIT_S) for call in calls] == [
        b"later" + bytes([i % 256]) * i * 50 for i in range(300)
    ]
    assert not running.server.state.calls and not running.server.state.buffered


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_callback_call_is_notified_of_its_end(running: Running, channel: grpc.Channel, end: str) -> None:
    direct = channel.unary_unary("/test.Test/direct")
    for timeout in UNTIL_IT_ARRIVES:
        call = direct.future(b"never", timeout=timeout if end == "deadline" else None)
        if running.handlers.started.acquire(timeout=timeout):
            break
    if end == "cancel":
        call.cancel()
    assert running.handlers.cancelled.wait(WAIT_S)
    held = running.handlers.held
    assert held is not None and held.over
    running.loop.call_soon_threadsafe(held.respond, (b"too late",))
    assert unary(channel, "direct", b"the next") == b"the next"
    assert call.code() is (
        grpc.StatusCode.CANCELLED if end == "cancel" else grpc.StatusCode.DEADLINE_EXCEEDED
    )
    assert not running.server.state.calls and not running.server.state.buffered


def test_compressed_callback_calls(start: Start) -> None:
    running = start(compression="low")
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        for compression in (None, grpc.Compression.Gzip):
            assert unary(channel, "direct", b"abc" * 1000, compression=compression) == b"abc" * 1000


@pytest.mark.parametrize("name", ["both", "generate"])
def test_streaming_calls(channel: grpc.Channel, name: str) -> None:
    sent = [bytes([i]) * (i * 3000) for i in range(40)]
    answers = list(channel.stream_stream(f"/test.Test/{name}")(iter(sent), timeout=WAIT_S))
    expected = (
        [m for message in sent for m in (message, message)] if name == "both" else [m * 2 for m in sent]
    )
    assert answers == expected


def test_compressed_requests(channel: grpc.Channel) -> None:
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        assert unary(channel, "echo", b"abc" * 1000, compression=compression) == b"abc" * 1000


def test_message_over_the_limit_is_refused(start: Start) -> None:
    running = start(max_message_size=1000)
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        with pytest.raises(grpc.RpcError, match="larger than max"):
            unary(channel, "echo", bytes(2000))
        assert unary(channel, "echo", bytes(1000)) == bytes(1000)
    assert not running.server.state.buffered


@pytest.mark.parametrize("method", ["direct", "both"])
def test_bomb_is_refused_before_it_is_decompressed(start: Start, method: str) -> None:
    """A message may be larger than this limit if it is not compressed by much."""
    running = start(max_decompressed_size=1_000_000)
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        call = channel.stream_stream(f"/test.Test/{method}", None, None)
        gzip = grpc.Compression.Gzip
        tracemalloc.start()
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([bytes(100_000_000)]), timeout=60, compression=gzip))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--grpc-max-decompressed-size" in caught.value.details()
        dense = random.Random(1).randbytes(1_500_000)
        assert next(call(iter([dense]), timeout=WAIT_S, compression=gzip)) == dense
    assert peak < 150_000_000  # 100 MB of which are the client's
    assert not running.server.state.buffered


def test_connection_beyond_the_limit_is_told_so(start: Start) -> None:
    running = start(max_connections=1)
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{running.port}"
    with grpc.insecure_channel(address, options) as first, grpc.insecure_channel(address, options) as second:
        assert unary(first, "echo", b"1") == b"1"
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                unary(second, "echo", b"2")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert caught.value.details() == "too many connections: the server accepts 1 (--max-connections)"
        assert unary(first, "echo", b"1") == b"1"
        first.close()
        running.run(until(lambda: not running.server.state.connections))
        assert unary(second, "echo", b"2") == b"2"


def test_thousand_calls_at_once(running: Running, channel: grpc.Channel) -> None:
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


def test_stop_finishes_calls_in_flight(start: Start) -> None:
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
        running.run(let_run())
        assert not stopping.done()
        gate.set()
        assert list(answers) == [b"1", b"2", b"2"]
        stopping.result(WAIT_S)
