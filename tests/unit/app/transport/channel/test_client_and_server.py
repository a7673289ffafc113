"""Client and server on one loop: unix and TCP, asyncio and uvloop."""

import asyncio
import gc
import os
import socket
import stat
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.transport.channel.client import Channel
from app.transport.channel.server import ChannelServer
from app.transport.settings import TransportSettings
from app.transport.wire.tensors import IN_META
from tests.unit.app.transport.conftest import KEY, Pair, Scripted, failure_of, infer, make_request
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("data_plane")

Start = Callable[..., Awaitable[Pair]]


@pytest.mark.parametrize("nbytes", [0, 64, IN_META, IN_META + 1, 40_000, 300_000, 3_000_000])
async def test_infer(start: Start, scheme: str, nbytes: int) -> None:
    channel = await (await start()).connect(scheme)
    data = np.random.default_rng(1).integers(0, 255, nbytes, np.uint8)
    tensors = (Tensor.from_array("A", data), Tensor.from_array("B", np.array([b"x", b""], dtype=object)))
    response = await infer(channel, InferRequest("echo", "3", tensors, id="7", parameters={"p": 1}))
    assert [t.name for t in response.outputs] == ["A", "B"]
    assert bytes(response.outputs[0].data) == data.tobytes()
    assert response.outputs[1].array().tolist() == [b"x", b""]
    assert (response.model_name, response.id, response.parameters) == ("echo", "7", {"p": 1})
    assert channel.outstanding == 0


async def test_request_fields_arrive(start: Start, scheme: str) -> None:
    pair = await start()
    channel = await pair.connect(scheme)
    deadline = time.monotonic() + 30
    sent = InferRequest(
        "echo",
        "2",
        (),
        (RequestedOutput("O"),),
        "id",
        {"a": True},
        "seq",
        True,
        True,
        5,
        6,
        "-",
        False,
        ("c",),
    )
    sent = msgspec.structs.replace(sent, deadline=deadline)
    await infer(channel, sent)
    (got,) = pair.handler.requests
    assert got.deadline == pytest.approx(deadline, abs=1)
    for field in InferRequest.__struct_fields__:
        assert field == "deadline" or getattr(got, field) == getattr(sent, field)


async def test_concurrent_requests_each_get_their_own_response(start: Start, scheme: str) -> None:
    channel = await (await start()).connect(scheme)
    sizes = [(n * 7919) % 100_000 for n in range(200)]
    responses = await asyncio.gather(*(infer(channel, make_request(n, id=str(n))) for n in sizes))
    assert [(r.id, len(r.outputs[0].data)) for r in responses] == [(str(n), n) for n in sizes]


async def test_no_sink_is_called_before_submit_returns(start: Start) -> None:
    channel = await (await start()).connect()
    seen: list[InferResponse] = []
    channel.send(make_request(), seen.append)
    assert seen == []
    await until(lambda: len(seen) == 1)


async def test_streamed_responses_keep_their_order(start: Start, scheme: str) -> None:
    channel = await (await start()).connect(scheme)
    seen: list[bool] = []
    channel.send(make_request(model="three"), lambda response: seen.append(response.final))
    await until(lambda: len(seen) == 3)
    assert seen == [False, False, True]
    assert channel.outstanding == 0


async def test_handler_errors(start: Start, scheme: str) -> None:
    channel = await (await start()).connect(scheme)
    error = await failure_of(channel, make_request(model="raise"))
    assert (error.code, error.message) == (ErrorCode.NOT_FOUND, "no such model")
    error = await failure_of(channel, make_request(model="crash"))
    assert error.code == ErrorCode.INTERNAL
    assert "secret" not in error.message


async def test_unencodable_response_is_an_error(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    seen: list[InferResponse] = []
    channel.send(make_request(model="hold"), seen.append)
    await until(lambda: len(pair.handler.replies) == 1)
    pair.handler.replies[0](InferResponse(parameters={"p": object()}))  # type: ignore[dict-item]
    await until(lambda: len(seen) == 1)
    assert seen[0].failure is not None and seen[0].failure.code == ErrorCode.INTERNAL
    assert not pair.handler.cancelled


async def test_unencodable_response_ends_its_stream(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    seen: list[InferResponse] = []
    channel.send(make_request(model="hold", id="endless"), seen.append)
    await until(lambda: len(pair.handler.replies) == 1)
    pair.handler.replies[0](InferResponse(parameters={"p": object()}, final=False))  # type: ignore[dict-item]
    await until(lambda: len(seen) == 1)
    assert seen[0].failure is not None and seen[0].final
    assert pair.handler.cancelled == ["endless"]


async def test_replies_after_the_final_one_are_not_sent(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    await infer(channel, make_request())
    (connection,) = pair.server.connections
    pair.handler.replies[0](InferResponse("late"))
    assert connection.buffered_bytes == 0
    answered = asyncio.create_task(infer(channel, make_request(model="hold")))
    await until(lambda: len(pair.handler.replies) == 2)
    pair.handler.replies[1](InferResponse("in time"))
    assert connection.buffered_bytes > 0
    assert (await answered).model_name == "in time"


async def test_control(start: Start, scheme: str) -> None:
    channel = await (await start()).connect(scheme)
    assert await channel.control("STATS", {"n": [1, b"x"]}) == {"verb": "STATS", "payload": {"n": [1, b"x"]}}
    with pytest.raises(InferError, match="no such verb"):
        await channel.control("raise")
    with pytest.raises(InferError) as caught:
        await channel.control("crash")
    assert "secret" not in str(caught.value)
    with pytest.raises(TimeoutError):
        await channel.control("sleep", 5, timeout=0.02)
    with pytest.raises(TypeError):
        await channel.control("STATS", object())


async def test_concurrent_control_calls_are_limited(start: Start) -> None:
    pair = await start(TransportSettings(max_controls=2))
    channel = await pair.connect()
    first, second, third = (asyncio.ensure_future(channel.control("hold")) for _ in range(3))
    with pytest.raises(InferError):
        await third
    pair.handler.released.set()
    assert [(await call)["verb"] for call in (first, second)] == ["hold", "hold"]


async def test_cancel(start: Start, scheme: str) -> None:
    pair = await start()
    channel = await pair.connect(scheme)
    seen: list[InferResponse] = []
    call = channel.send(make_request(model="hold", id="1"), seen.append)
    await until(lambda: len(pair.handler.replies) == 1)
    call.cancel()
    assert seen == []
    call.cancel()
    await until(lambda: pair.handler.cancelled == ["1"])
    pair.handler.replies[0](InferResponse("late"))
    await infer(channel, make_request())
    (response,) = seen
    assert response.final and response.id == "1"
    assert response.failure is not None
    assert response.failure == Failure(ErrorCode.CANCELLED, "", FailureReason.CANCELED)
    assert channel.outstanding == pair.server.outstanding == 0


async def test_late_responses_are_discarded_and_their_slabs_released(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    seen: list[InferResponse] = []
    for _ in range(20):
        channel.send(make_request(100_000), seen.append).cancel()
    await until(lambda: len(seen) == 20)
    await infer(channel, make_request())
    assert all(response.failure for response in seen)
    connection = next(iter(pair.server.connections))
    pair.handler.requests.clear()
    await until(lambda: channel.statistics()["arena_used_bytes"] == 0)
    await until(lambda: connection.statistics()["arena_used_bytes"] == 0)


async def test_cancelling_ten_thousand_before_they_are_scheduled(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    finals = [0] * 10_000
    for n in range(10_000):

        def sink(response: InferResponse, n: int = n) -> None:
            finals[n] += response.final

        channel.send(make_request(model="hold"), sink).cancel()
    await infer(channel, make_request())
    assert finals == [1] * 10_000
    assert len(pair.handler.cancelled) == 10_000
    assert channel.outstanding == pair.server.outstanding == 0


async def test_deadline(start: Start, scheme: str) -> None:
    pair = await start()
    channel = await pair.connect(scheme)
    begun = time.monotonic()
    error = await failure_of(channel, make_request(model="hold", id="1", deadline=begun + 0.05))
    assert (error.code, error.message) == (ErrorCode.UNAVAILABLE, "Deadline Exceeded")
    assert time.monotonic() - begun >= 0.05
    await until(lambda: pair.handler.cancelled == ["1"])


async def test_deadlines_expire_in_order_and_met_ones_do_not(start: Start) -> None:
    pair = await start(TransportSettings(deadline_grace=0))
    channel = await pair.connect(settings=TransportSettings(deadline_grace=0))
    now = time.monotonic()
    seen: list[str] = []
    for delay in (0.30, 0.10, 0.20, -5.0):
        request = make_request(model="hold", id=str(delay), deadline=now + delay)
        channel.send(request, lambda response: seen.append(response.id))
    for deadline in (now + 30, now + 1e9, float("inf"), 1e300):
        response = await infer(channel, make_request(deadline=deadline))
        assert response.failure is None
    await until(lambda: len(seen) == 4)
    assert seen == ["-5.0", "0.1", "0.2", "0.3"]
    assert not channel._deadlines._buckets, "those of answered requests are left"


async def test_raising_sink_does_not_affect_others(start: Start) -> None:
    channel = await (await start()).connect()
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def bad(response: InferResponse) -> None:
        raise RuntimeError("sink")

    channel.send(make_request(), bad)
    assert (await infer(channel, make_request())).failure is None
    assert [str(error) for error in reported] == ["sink"]


async def test_streams_are_limited(start: Start) -> None:
    pair = await start(TransportSettings(max_streams=2))
    channel = await pair.connect()
    seen: list[InferResponse] = []
    for _ in range(3):
        channel.send(make_request(model="hold"), seen.append)
    await until(lambda: len(seen) == 1)
    assert seen[0].failure is not None and seen[0].failure.code == ErrorCode.UNAVAILABLE


async def test_tensors_are_sent_inline_when_the_arena_is_full(start: Start) -> None:
    settings = TransportSettings(arena_bytes=1 << 20)
    pair = await start(settings)
    channel = await pair.connect(settings=settings)
    held = [await infer(channel, make_request(600_000)) for _ in range(5)]
    assert channel.statistics()["arena_refusals"] > 0
    assert len({bytes(response.outputs[0].data) for response in held}) == 1
    held.clear()
    pair.handler.requests.clear()
    await until(lambda: channel.statistics()["arena_used_bytes"] == 0)


async def test_views_dropped_in_another_thread_release_their_slabs(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    held = [(await infer(channel, make_request(100_000))).outputs[0].array() for _ in range(10)]
    connection = next(iter(pair.server.connections))
    assert connection.statistics()["arena_used_bytes"] > 0
    thread = threading.Thread(target=held.clear)
    thread.start()
    await asyncio.to_thread(thread.join)
    await until(lambda: connection.statistics()["arena_used_bytes"] == 0)


async def test_idle_arena_returns_its_memory(start: Start) -> None:
    settings = TransportSettings(arena_trim_after=0.05)
    pair = await start(settings)
    channel = await pair.connect(settings=settings)
    await infer(channel, make_request(3_000_000))
    pair.handler.requests.clear()
    arena = channel.arena
    assert arena is not None
    await until(lambda: arena.live == 0)
    before = arena.allocations
    await until(lambda: not arena.memory[1])  # of the tensor, the first slab
    assert arena.allocations == before
    assert bytes(arena.allocate(3_000_000)[1][:10]) == bytes(10)  # type: ignore[index]


async def test_socket_file_is_private_and_stale_ones_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "replica.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = ChannelServer(Scripted(), KEY)
    await server.listen(unix_path=str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(OSError, match="another process"):
        await ChannelServer(Scripted(), KEY).listen(unix_path=str(path))
    await server.close()
    assert not path.exists()


async def test_unsafe_paths_are_refused(tmp_path: Path) -> None:
    server = ChannelServer(Scripted(), KEY)
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError):
        await server.listen(unix_path=str(tmp_path / "replica.sock"))
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "file").write_text("keep")
    with pytest.raises(FileExistsError):
        await server.listen(unix_path=str(private / "file"))
    with pytest.raises(ValueError, match="longer"):
        await server.listen(unix_path=str(private / ("x" * 120)))
    assert (private / "file").read_text() == "keep"


@pytest.mark.parametrize(
    "address", ["", "unix:", "unix:relative", "tcp:", "tcp:host", "tcp:h:99999", "udp:h:1"]
)
async def test_malformed_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        await Channel.connect(address, KEY)


async def closed(channel: Channel) -> None:
    await until(lambda: channel.closed)


async def test_descriptors_and_tasks_are_flat_over_many_connections(
    start: Start, scheme: str, open_descriptors: Callable[[], int]
) -> None:
    pair = await start()
    before = tasks = 0
    for n in range(200):
        channel = await Channel.connect(pair.addresses[scheme], KEY)
        await infer(channel, make_request(100_000))
        channel.close()
        await closed(channel)
        if n == 10:
            await until(lambda: not pair.server.connections)
            gc.collect()
            before, tasks = open_descriptors(), len(asyncio.all_tasks())
    await until(lambda: not pair.server.connections)
    pair.handler.requests.clear()
    pair.handler.replies.clear()
    gc.collect()
    assert open_descriptors() <= before
    assert len(asyncio.all_tasks()) <= tasks


async def test_keys_too_short_are_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        ChannelServer(Scripted(), b"short")
    with pytest.raises(ValueError, match="16 bytes"):
        await Channel.connect("unix:/nowhere", b"short")


async def test_connecting_without_a_listener_fails(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        await Channel.connect(f"unix:{tmp_path}/none.sock", KEY)
    assert os.listdir("/proc/self/fd")
