"""Tensors that one replica answered, sent to another: by reference once it has mapped their arena."""

import gc
import os
import tempfile
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.channel.client import Channel
from app.transport.memory.arena import ArenaReader, ArenaWriter, find_slab
from app.transport.memory.lending import MAX_ARENAS, Borrower, Lender, released_key
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from tests.unit.app.transport.conftest import Pair, ReplicaProcess, infer, make_request
from tests.waiting import until

Start = Callable[..., Awaitable[Pair]]
SIZE = 600_000


def onward(response: InferResponse) -> InferRequest:
    """What was answered, as the next step's request."""
    (tensor,) = response.outputs
    return InferRequest("echo", "", (Tensor("INPUT0", tensor.datatype, tensor.shape, tensor.data),))


def written(channel: Channel) -> int:
    """Tensors copied into a channel's arena."""
    assert channel.arena is not None
    return channel.arena.allocations


async def chain(first: Channel, second: Channel) -> bytes:
    """One request through two steps."""
    response = await infer(second, onward(await infer(first, make_request(SIZE))))
    return bytes(response.outputs[0].data)


async def settle(first: Channel, second: Channel, *pairs: Pair) -> None:
    """Go on until all is lent that can be: an echo lies in other arenas once they are lent from."""
    for _ in range(8):
        await chain(first, second)
    for pair in pairs:
        pair.handler.requests.clear()
        pair.handler.replies.clear()
    gc.collect()
    await until(lambda: second.lender is not None and second.lender.live == 0)


async def test_third_process_reads_the_memory_of_the_first(start: Start, replica: ReplicaProcess) -> None:
    pair = await start()
    first = await pair.connect()
    second = await Channel.connect(replica.addresses["unix"], b"a key of the cluster, 32 bytes..")
    expected = bytes(make_request(SIZE).inputs[0].data)
    assert first.lender is not None and second.lender is not None
    assert await chain(first, second) == expected
    assert (written(second), second.lender.total) == (1, 0)
    await settle(first, second, pair)
    before = written(second), second.lender.total
    for _ in range(20):
        assert await chain(first, second) == expected
    assert (written(second), second.lender.total) == (before[0], before[1] + 20)
    pair.handler.requests.clear()
    pair.handler.replies.clear()
    gc.collect()
    await until(lambda: second.lender is not None and second.lender.live == 0)
    (server,) = pair.server.connections
    await until(lambda: server.arena is not None and server.arena.live == 0)
    assert first.arena is not None
    await until(lambda: first.arena is not None and first.arena.live == 0)
    second.close()


async def test_lent_tensor_is_not_overwritten(start: Start) -> None:
    one, other = await start(), await start()
    first, second = await one.connect(), await other.connect()
    await settle(first, second, one, other)
    await chain(first, second)
    held = other.handler.requests[-1].inputs[0]
    other.handler.requests.clear()
    other.handler.replies.clear()
    one.handler.requests.clear()
    assert second.lender is not None and second.lender.live == 1
    for _ in range(5):
        data = np.zeros(SIZE, np.uint8)
        await infer(first, InferRequest("echo", "", (Tensor.from_array("INPUT0", data),)))
        one.handler.requests.clear()
    assert bytes(held.data) == bytes(make_request(SIZE).inputs[0].data)
    del held
    await until(lambda: second.lender is not None and second.lender.live == 0)


async def test_tensors_are_copied_when_the_peer_cannot_map_the_arena(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArenaReader, "__init__", unreachable(ArenaReader.__init__))
    one, other = await start(), await start()
    first, second = await one.connect(), await other.connect()
    for _ in range(3):
        assert await chain(first, second) == bytes(make_request(SIZE).inputs[0].data)
    assert second.lender is not None
    assert (written(second), second.lender.total) == (3, 0)


def unreachable(init: Callable[..., None]) -> Callable[..., None]:
    """As in a container with process ids of its own."""

    def patched(reader: ArenaReader, *arguments: object) -> None:
        init(reader, *arguments)
        reader.path = "/proc/999999999/fd/3"

    return patched


async def test_nothing_is_lent_over_tcp(start: Start) -> None:
    one, other = await start(), await start()
    first, second = await one.connect(), await other.connect("tcp")
    assert second.lender is None
    assert await chain(first, second) == bytes(make_request(SIZE).inputs[0].data)


async def test_end_of_a_connection_releases_lent_tensors(start: Start) -> None:
    one, other = await start(), await start()
    first, second = await one.connect(), await other.connect()
    await settle(first, second, one, other)
    await chain(first, second)
    lender = second.lender
    assert lender is not None and lender.live == 1, "the scripted handler keeps its requests"
    second.close()
    await until(lambda: second.closed)
    assert lender.live == 0


@pytest.fixture
def writer() -> ArenaWriter:
    return ArenaWriter(1 << 20)


def reader_of(writer: ArenaWriter) -> ArenaReader:
    return ArenaReader(writer.fd, writer.nbytes, lambda _: None)


def test_aligned_parts_of_slabs_are_lent(writer: ArenaWriter) -> None:
    reader = reader_of(writer)
    view = reader.view(65536, 1000)
    assert find_slab(view) == (reader, 65536)
    assert find_slab(view[128:200]) == (reader, 65536 + 128)
    assert find_slab(np.frombuffer(view, np.float32)[16:].reshape(2, -1).data) == (reader, 65536 + 64)
    assert find_slab(view[1:]) is None
    assert find_slab(bytes(1000)) is None
    assert find_slab(memoryview(bytes(1000))) is None
    assert find_slab(np.zeros(1000, np.uint8).data) is None


def test_mismatched_offers_are_refused(writer: ArenaWriter) -> None:
    reader, borrower = reader_of(writer), Borrower(1 << 30, lambda _: None)
    size, inode = writer.nbytes, reader.inode
    assert not borrower.offered((0, "/proc/999999999/fd/3", inode, size))
    assert not borrower.offered((0, reader.path, inode + 1, size))
    assert not borrower.offered((0, reader.path, inode, size * 2))
    assert not borrower.offered((0, reader.path, inode, 1 << 40))
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        path, own = f"/proc/{os.getpid()}/fd/{file.fileno()}", os.fstat(file.fileno()).st_ino
        assert not borrower.offered((0, path, own, size))
    with pytest.raises(ProtocolError, match="cannot be offered"):
        borrower.offered((0, "/etc/passwd", inode, size))
    assert borrower.offered((0, reader.path, inode, size))
    with pytest.raises(ProtocolError, match="cannot be offered"):
        borrower.offered((0, reader.path, inode, size))


def test_borrowed_tensor_is_released_by_its_key(writer: ArenaWriter) -> None:
    released: list[int] = []
    reader, borrower = reader_of(writer), Borrower(1 << 30, released.append)
    with pytest.raises(ProtocolError, match="not accepted"):
        borrower.view(0, 10, 0, 0)
    assert borrower.offered((0, reader.path, reader.inode, writer.nbytes))
    first, again = borrower.view(0, 10, 0, 5), borrower.view(0, 10, 0, 6)
    with pytest.raises(ProtocolError, match="sent twice"):
        borrower.view(0, 10, 0, 5)
    assert borrower.live == 2
    del first
    assert released == [released_key(5)]
    borrower.close()
    del again
    assert released == [released_key(5), released_key(6)]


def test_lender_limits_arenas_and_keeps_lent_tensors(writer: ArenaWriter) -> None:
    offers: list[int] = []
    lender = Lender(lambda offer: offers.append(offer[0]))
    reader = reader_of(writer)
    view = reader.view(0, 1000)
    assert lender.lend(view, 1000) is None and lender.lend(view, 1000) is None
    assert offers == [0], "offered once"
    lender.accepted(0)
    assert lender.lend(view, 1000) == (0, 1000, 0, 0)
    assert lender.live == 1
    lender.released(0)
    with pytest.raises(ProtocolError, match="not lent"):
        lender.released(0)
    for number in range(1, MAX_ARENAS + 5):
        reader.inode = -number
        lender.lend(view, 1000)
    assert len(offers) == MAX_ARENAS


async def test_echoed_tensor_is_lent_back(start: Start) -> None:
    pair = await start(TransportSettings())
    channel = await pair.connect()
    for _ in range(3):
        await infer(channel, make_request(SIZE))
    (server,) = pair.server.connections
    await until(lambda: bool(server.lender and server.lender._accepted))
    before = written(channel), server.arena.allocations if server.arena else 0
    response = await infer(channel, make_request(SIZE))
    assert bytes(response.outputs[0].data) == bytes(make_request(SIZE).inputs[0].data)
    assert (written(channel), server.arena.allocations if server.arena else 0) == (before[0] + 1, before[1])
