"""Large tensors between two ends of one machine: they lie in shared memory, and messages say where."""

import asyncio
import gc
import pkgutil
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest, Tensor
from app.native.choice import missing
from app.transport.channel.client import Channel
from app.transport.memory.shared_pool import allocate
from app.transport.wire.frames import Kind, encode_frame
from tests.channel_ends import called, served
from tests.unit.app.transport.conftest import Pair, infer
from tests.waiting import let_run, until

Start = Callable[..., Awaitable[Pair]]
NBYTES = 300_000
needs_extension = pytest.mark.skipif(bool(missing()), reason=missing())


def large(name: str = "A", byte: int = 7, pool: bool = False) -> Tensor:
    data = allocate(NBYTES) if pool else memoryview(bytearray(NBYTES))
    data[:] = bytes([byte]) * NBYTES
    return Tensor(name, "UINT8", (NBYTES,), data)


async def exchange(channel: Channel, pair: Pair, *tensors: Tensor, **fields: Any) -> None:
    """Have tensors echoed, and compare them."""
    response = await infer(channel, InferRequest("echo", "", tensors, **fields))
    assert [(t.name, t.shape) for t in response.outputs] == [(t.name, t.shape) for t in tensors]
    assert [bytes(t.data) for t in response.outputs] == [bytes(t.data) for t in tensors]
    pair.handler.requests.clear()
    pair.handler.replies.clear()


async def nothing_in_use(channel: Channel, pair: Pair) -> None:
    ends = [channel, *pair.server.connections]
    for name in ("arena_used_bytes", "peer_arena_slabs", "lent", "borrowed"):
        await until(lambda name=name: not any(end.statistics()[name] for end in ends))  # type: ignore[misc]


@pytest.mark.parametrize("pool", [False, True])
async def test_they_return_and_are_released(start: Start, data_plane: str, pool: bool) -> None:
    pair = await start()
    channel = await pair.connect()
    for number in range(5):
        await exchange(channel, pair, large("A", number, pool), large("B", 255 - number), id=str(number))
    await exchange(channel, pair, large(), Tensor("B", "BYTES", (1,), b"\1\0\0\0x"))
    await exchange(channel, pair, large(), parameters={"a": 1})
    await nothing_in_use(channel, pair)
    assert channel.lender is not None and bool(channel.lender.total) is pool


@needs_extension
async def test_most_need_no_python_where_messages_are_compiled(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []
    for target in (
        "app.transport.wire.messages.FrameEncoder.request",
        "app.transport.wire.messages.FrameEncoder.response",
        "app.transport.channel.server_connection.decode_request",
        "app.transport.channel.client.decode_response",
    ):
        monkeypatch.setattr(target, counting(left, target, pkgutil.resolve_name(target)))
    pair = await start()
    channel = await pair.connect()
    for number in range(20):
        await exchange(channel, pair, large("A", number, pool=True), large("B"))
    await nothing_in_use(channel, pair)
    assert len(left) < 20  # those that arrived behind a frame of another kind


def counting(into: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        into.append(name)
        return function(*arguments)

    return call


@pytest.mark.parametrize("pool", [False, True])
async def test_what_is_not_sent_is_released(start: Start, data_plane: str, pool: bool) -> None:
    pair = await start()
    channel = await pair.connect()
    await exchange(channel, pair, large(pool=pool))
    with pytest.raises(InferError) as raised:
        channel.send(InferRequest("echo", "", (large(pool=pool),), id="\ud800"), print)
    assert raised.value.code is ErrorCode.INVALID_ARG
    await nothing_in_use(channel, pair)


@needs_extension
async def test_they_leave_nothing_behind(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    tensors = large(pool=True), large("B")

    async def run(times: int) -> int:
        for _ in range(times):
            await exchange(channel, pair, *tensors)
        await nothing_in_use(channel, pair)
        gc.collect()
        return sys.getallocatedblocks()

    await run(200)
    before = await run(200)
    assert await run(1000) - before < 600


@needs_extension
@pytest.mark.parametrize(
    "place", [(), (0,), (0, 65536), (0, 1, 2), (0, 64, 0, 0), (-1, 5), (0, 1 << 63), (0, "a"), [(0, 1)]]
)
def test_places_of_nothing_end_the_connection_alike(place: object) -> None:
    tensor = ("I", "FP32", (1, 1), place)
    request = msgspec.msgpack.encode(("m", "", (tensor,), ("O",), ""))
    response = msgspec.msgpack.encode(("m", "1", (tensor,), ""))
    for data in (encode_frame(Kind.INFER, 1, request), encode_frame(Kind.RESPONSE, 1, response, 1)):
        assert served("native", data) == served("python", data)
        assert called("native", data) == called("python", data)
    ((_, ended, *_), *_), _ = served("native", encode_frame(Kind.INFER, 1, request))
    assert ended == "aborted"


async def test_releases_go_with_other_frames_while_there_are_some(
    start: Start, data_plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expire = release_timers(monkeypatch)
    pair = await start()
    channel = await pair.connect()
    tensor = large(pool=True)
    await exchange(channel, pair, tensor)  # each side learns what the other lends from
    await exchange(channel, pair, tensor)
    await let_run()
    alone: list[int] = []
    release = channel._release

    def released_alone() -> None:
        alone.append(len(channel._dropped))
        release()

    monkeypatch.setattr(channel, "_release", released_alone)
    for _ in range(100):
        await exchange(channel, pair, tensor)
        await expire()
    assert not alone
    for _ in range(2):
        await expire()
    await nothing_in_use(channel, pair)
    assert alone


def release_timers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """Return what has all timers of releases expire: by themselves they do not, however busy the machine."""
    pending: list[Callable[[], object]] = []
    loop, seconds = asyncio.get_running_loop(), 1e6
    call_later = loop.call_later
    monkeypatch.setattr("app.transport.channel.connection._LENT_RELEASE_S", seconds)

    def note(delay: float, callback: Callable[..., object], *arguments: Any, **context: Any) -> Any:
        if delay != seconds:
            return call_later(delay, callback, *arguments, **context)
        pending.append(partial(callback, *arguments))
        return None

    async def expire() -> None:
        expired = pending[:]
        pending.clear()
        for each in expired:
            each()
        await let_run()  # what was dropped has a timer by then

    monkeypatch.setattr(loop, "call_later", note)
    return expire
