"""What goes wrong between processes: lost peers, strangers, liars, slow readers, shutdown."""

import asyncio
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferResponse, Tensor
from app.transport.channel.client import Channel
from app.transport.protocol import PROTOCOL_VERSION
from app.transport.settings import TransportSettings
from app.transport.wire.control_messages import encode_release
from app.transport.wire.frames import HEADER, Kind, encode_frame
from tests.unit.app.transport.conftest import (
    KEY,
    Finals,
    Pair,
    ReplicaProcess,
    failure_of,
    infer,
    make_request,
)
from tests.waiting import let_run, until

Start = Callable[..., Awaitable[Pair]]


async def test_two_processes(replica: ReplicaProcess, scheme: str) -> None:
    channel = await Channel.connect(replica.addresses[scheme], KEY)
    for nbytes in (64, 20_000, 600_000):
        response = await infer(channel, make_request(nbytes))
        assert bytes(response.outputs[0].data) == bytes(make_request(nbytes).inputs[0].data)
    assert await channel.control("ECHO", [1]) == [1]
    channel.close()
    await until(lambda: channel.closed)


async def test_killed_replica(replica: ReplicaProcess, scheme: str) -> None:
    closed: list[Any] = []
    channel = await Channel.connect(
        replica.addresses[scheme],
        KEY,
        on_close=lambda channel, cause: closed.append((channel.outstanding, cause)),
        lost_text=lambda cause: f"model 'm': {cause}",
    )
    finals = Finals()
    for n in range(300):
        channel.send(make_request(600_000 if n % 10 == 0 else 64, model="hold"), finals.sink())
    control = asyncio.ensure_future(channel.control("ECHO", None, timeout=30))
    await asyncio.sleep(0)
    replica.child.kill()
    await until(lambda: channel.closed)
    assert finals.counts == [1] * 300
    assert {error.code for error in finals.errors} == {ErrorCode.UNAVAILABLE}
    assert all(error.message.startswith("model 'm': ") for error in finals.errors)
    await asyncio.wait([control])
    assert len(closed) == 1 and closed[0][0] == 0 and isinstance(closed[0][1], OSError)
    with pytest.raises(InferError):
        channel.send(make_request(), finals.sink())
    with pytest.raises(InferError):
        await channel.control("ECHO")


async def test_lost_client_cancels_its_requests(start: Start, scheme: str) -> None:
    pair = await start()
    leaving, staying = await pair.connect(scheme), await pair.connect(scheme)
    finals = Finals()
    for n in range(3):
        leaving.send(make_request(model="hold", id=str(n)), finals.sink())
    await until(lambda: pair.server.outstanding == 3)
    leaving.abort(ConnectionError("test"))
    await until(lambda: sorted(pair.handler.cancelled) == ["0", "1", "2"])
    assert finals.counts == [1] * 3
    assert (await infer(staying, make_request())).failure is None
    for reply in pair.handler.replies:
        reply(InferResponse("too late"))
    assert pair.server.outstanding == 0


async def test_wrong_key_is_refused(start: Start, scheme: str) -> None:
    pair = await start()
    with pytest.raises(ConnectionError):
        await Channel.connect(pair.addresses[scheme], b"x" * 32)
    assert not pair.server.connections
    assert (await infer(await pair.connect(scheme), make_request())).failure is None


async def raw_server(handle: Callable[[socket.socket], Awaitable[None]]) -> tuple[str, asyncio.Task[None]]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    loop = asyncio.get_running_loop()

    async def serve() -> None:
        with listener:
            sock, _ = await loop.sock_accept(listener)
            with sock:
                await handle(sock)

    return f"tcp:127.0.0.1:{listener.getsockname()[1]}", asyncio.ensure_future(serve())


async def test_client_refuses_a_server_that_cannot_prove_the_key() -> None:
    async def impostor(sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"NEREID\r\n" + PROTOCOL_VERSION.to_bytes(4, "little") + bytes(32))
        await loop.sock_recv(sock, 1000)
        await loop.sock_sendall(sock, bytes(8) + b"p" * 32)
        await loop.sock_recv(sock, 1)

    address, task = await raw_server(impostor)
    with pytest.raises(ConnectionError, match="does not know the key"):
        await Channel.connect(address, KEY)
    await task


async def test_client_refuses_another_version_and_another_protocol() -> None:
    for greeting, message in (
        (b"NEREID\r\n\x09\0\0\0" + bytes(32), "version 9"),
        (b"S" * 44, "does not speak"),
    ):

        async def stranger(sock: socket.socket, greeting: bytes = greeting) -> None:
            await asyncio.get_running_loop().sock_sendall(sock, greeting)

        address, task = await raw_server(stranger)
        with pytest.raises(ConnectionError, match=message):
            await Channel.connect(address, KEY)
        await task


async def test_connecting_to_a_silent_server_times_out() -> None:
    async def silent(sock: socket.socket) -> None:
        await asyncio.get_running_loop().sock_recv(sock, 1)

    address, task = await raw_server(silent)
    with pytest.raises(TimeoutError):
        await Channel.connect(address, KEY, TransportSettings(connect_timeout=0.05))
    await task


async def raw_client(pair: Pair, scheme: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    if scheme == "unix":
        sock = socket.socket(socket.AF_UNIX)
        target: Any = pair.addresses["unix"].removeprefix("unix:")
    else:
        sock = socket.socket()
        target = ("127.0.0.1", int(pair.addresses["tcp"].rpartition(":")[2]))
    sock.setblocking(False)
    await loop.sock_connect(sock, target)
    return sock


async def in_time(pair: Pair, scheme: str) -> Channel:
    """Connect, again where the handshake took longer than the server allows, as on a busy machine."""
    while True:
        try:
            return await pair.connect(scheme)
        except ConnectionError:
            await asyncio.sleep(0)


async def test_unproved_peers_are_disconnected_before_any_frame_is_parsed(start: Start, scheme: str) -> None:
    pair = await start(TransportSettings(handshake_timeout=0.1, max_handshakes=2))
    loop = asyncio.get_running_loop()
    for greeting in (b"", b"GET / HTTP/1.1\r\n\r\n" * 10, encode_frame(Kind.INFER, 1, b"x") * 10):
        with await raw_client(pair, scheme) as sock:
            await loop.sock_sendall(sock, greeting)
            try:
                while await loop.sock_recv(sock, 1000):
                    pass
            except ConnectionError:
                pass
    assert pair.handler.requests == []
    assert (await infer(await in_time(pair, scheme), make_request())).failure is None


async def test_who_only_looks_whether_somebody_listens_is_no_warning(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    pair = await start()
    (await raw_client(pair, "unix")).close()
    assert (await infer(await pair.connect("unix"), make_request())).failure is None
    assert not caplog.records


async def test_silent_connections_do_not_block_clients(start: Start) -> None:
    pair = await start(TransportSettings(handshake_timeout=0.1, max_handshakes=2))
    strangers = [await raw_client(pair, "tcp") for _ in range(6)]
    assert (await infer(await in_time(pair, "tcp"), make_request())).failure is None
    for sock in strangers:
        sock.close()


async def test_too_many_connections(start: Start) -> None:
    pair = await start(TransportSettings(max_connections=1))
    await pair.connect()
    with pytest.raises(ConnectionError):
        await pair.connect()


@pytest.mark.parametrize(
    "attack",
    [
        HEADER.pack(99, 0, 0, 0, 0, 0, 0),
        HEADER.pack(Kind.INFER, 0, 0, 2**32 - 1, 0, 1, 0),
        HEADER.pack(Kind.INFER, 0, 0, 0, 2**63, 1, 0),
        encode_frame(Kind.INFER, 1, b"\xc1"),
        encode_frame(Kind.RESPONSE, 1, b"\x93\xa0\xa0\x90"),
        encode_frame(Kind.DRAIN),
        encode_frame(Kind.RELEASE, 0, encode_release([4096])),
        encode_frame(Kind.RELEASE, 0, b"\xc1"),
        encode_frame(Kind.CONTROL, 1, b"\x91" * 5000),
        encode_frame(Kind.INFER, 1, b"\x93\xa0\xa0\x91\x94\xa0\xa0\x90\x92\xcf" + b"\xff" * 8 + b"\x01"),
        encode_frame(Kind.INFER, 7, b"\x93\xa4hold\xa0\x90") * 2,
    ],
)
async def test_malformed_frames_close_only_their_own_connection(
    start: Start, scheme: str, attack: bytes
) -> None:
    pair = await start()
    honest, liar = await pair.connect(scheme), await pair.connect(scheme)
    finals = Finals()
    liar.send(make_request(model="hold"), finals.sink())
    liar._transport.write(attack)
    await until(lambda: liar.closed)
    assert finals.counts == [1]
    assert (await infer(honest, make_request())).failure is None
    assert len(pair.server.connections) == 1


async def test_malformed_frame_of_a_server_closes_its_connection(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    finals = Finals()
    channel.send(make_request(model="hold"), finals.sink())
    await until(lambda: pair.server.outstanding == 1)
    next(iter(pair.server.connections))._transport.write(encode_frame(Kind.INFER, 1, b""))
    await until(lambda: channel.closed)
    assert finals.counts == [1]
    assert "does not accept frames" in finals.errors[0].message


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_client_that_does_not_read_is_disconnected_at_the_limit(start: Start, scheme: str) -> None:
    bound = 8 << 20
    pair = await start(TransportSettings(max_buffered_bytes=bound, write_high_water=1 << 16, arena_bytes=0))
    channel = await pair.connect(scheme)
    finals = Finals()
    channel.send(make_request(model="hold", id="1"), finals.sink())
    await until(lambda: pair.server.outstanding == 1)
    channel._transport.pause_reading()
    before = peak_memory()
    connection = next(iter(pair.server.connections))
    for _ in range(10_000):
        data = os.urandom(10_000)
        pair.handler.replies[0](InferResponse(outputs=(Tensor("O", "UINT8", (10_000,), data),), final=False))
        assert connection.buffered_bytes <= bound + (1 << 20)
        await asyncio.sleep(0)
        if connection.closed:
            break
    assert connection.closed and pair.handler.cancelled == ["1"]
    assert peak_memory() - before < 4 * bound
    channel._transport.resume_reading()
    await until(lambda: channel.closed)
    assert finals.counts == [1]


async def test_response_larger_than_the_send_buffer_arrives(start: Start, scheme: str) -> None:
    pair = await start(TransportSettings(max_buffered_bytes=1 << 20, write_high_water=1 << 16, arena_bytes=0))
    channel = await pair.connect(scheme, settings=TransportSettings(arena_bytes=0))
    finals = Finals()
    for nbytes in (8 << 20, 64, 64, 6 << 20):
        channel.send(make_request(nbytes), finals.sink())
    await until(lambda: finals.counts == [1] * 4)
    assert finals.errors == []


async def test_requests_of_a_slow_reader_are_paused(start: Start) -> None:
    pair = await start(TransportSettings(write_high_water=1 << 16, arena_bytes=0))
    channel = await pair.connect()
    finals = Finals()
    channel._transport.pause_reading()
    for _ in range(400):
        channel.send(make_request(20_000), finals.sink())
        await asyncio.sleep(0)
    connection = next(iter(pair.server.connections))
    await until(lambda: not connection._reading)
    taken = len(pair.handler.requests)
    await let_run()
    assert len(pair.handler.requests) == taken < 400
    channel._transport.resume_reading()
    await until(lambda: sum(finals.counts) == 400)
    assert finals.counts == [1] * 400 and finals.errors == []


async def test_client_refuses_requests_beyond_its_send_buffer(start: Start) -> None:
    pair = await start()
    channel = await pair.connect(
        settings=TransportSettings(max_buffered_bytes=1 << 20, write_high_water=1 << 16, arena_bytes=0)
    )
    connection = next(iter(pair.server.connections))
    connection._transport.pause_reading()
    finals = Finals()
    accepted = 0
    with pytest.raises(InferError) as caught:
        for accepted in range(1000):  # noqa: B007
            channel.send(make_request(20_000), finals.sink())
            await asyncio.sleep(0)
    assert caught.value.code == ErrorCode.UNAVAILABLE
    assert channel.buffered_bytes < (1 << 20) + (1 << 18)
    connection._transport.resume_reading()
    await until(lambda: sum(finals.counts) == accepted)
    assert finals.errors == []


async def test_error_after_close_names_the_cause(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    waiting = asyncio.ensure_future(failure_of(channel, make_request(model="hold")))
    await until(lambda: pair.server.outstanding == 1)
    await pair.server.close()
    assert (await waiting).message == "connection to model replica lost: closed by the replica"
