"""Slabs: allocation, bounds, and views that release theirs in whatever thread drops them."""

import gc
import mmap
import os
import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from app.transport.memory.arena import SMALLEST_SLAB, ArenaReader, ArenaWriter
from app.transport.protocol import ProtocolError

MIB = 1 << 20


@pytest.fixture
def writer() -> Iterator[ArenaWriter]:
    arena = ArenaWriter(4 * MIB)
    yield arena
    arena.close()


def reader_of(writer: ArenaWriter) -> tuple[ArenaReader, list[int]]:
    released: list[int] = []
    return ArenaReader(writer.fd, writer.nbytes, released.append), released


def committed(writer: ArenaWriter) -> int:
    return os.fstat(writer.fd).st_blocks * 512


def test_allocates_until_full_and_again_after_release(writer: ArenaWriter) -> None:
    slabs = [writer.allocate(MIB) for _ in range(4)]
    assert writer.allocate(1) is None
    assert writer.refusals == 1
    offsets = {slab[0] for slab in slabs if slab}
    assert offsets == {0, MIB, 2 * MIB, 3 * MIB}
    for offset in offsets:
        writer.release(offset)
    assert writer.live == writer.used_bytes == 0
    whole = writer.allocate(4 * MIB)
    assert whole is not None and len(whole[1]) == 4 * MIB
    assert writer.allocate(4 * MIB + 1) is None


def test_slabs_never_overlap(writer: ArenaWriter) -> None:
    dice = random.Random(7)
    live: dict[int, int] = {}
    for _ in range(3000):
        if live and dice.random() < 0.5:
            offset = dice.choice(list(live))
            writer.release(offset)
            del live[offset]
        else:
            size = dice.choice([1, 5000, 70_000, 200_000, MIB])
            slab = writer.allocate(size)
            if slab is not None:
                assert all(slab[0] + size <= start or start + n <= slab[0] for start, n in live.items())
                assert slab[0] % SMALLEST_SLAB == 0 and slab[0] + size <= writer.nbytes
                live[slab[0]] = size
    for offset in live:
        writer.release(offset)
    assert writer.allocate(writer.nbytes) is not None


def test_release_of_an_unused_slab_is_refused(writer: ArenaWriter) -> None:
    slab = writer.allocate(10)
    assert slab is not None
    writer.release(slab[0])
    for offset in (slab[0], 1, -1, 2**64):
        with pytest.raises(ProtocolError):
            writer.release(offset)


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(-SMALLEST_SLAB, 1), (0, 0), (0, -1), (1, 1), (0, 4 * MIB + 1), (4 * MIB, 1), (2**64 - 65536, 65536)],
)
def test_reader_refuses_slabs_outside_the_arena(writer: ArenaWriter, offset: int, nbytes: int) -> None:
    reader, _ = reader_of(writer)
    with pytest.raises(ProtocolError):
        reader.view(offset, nbytes)


def test_reader_refuses_a_slab_in_use(writer: ArenaWriter) -> None:
    reader, released = reader_of(writer)
    view = reader.view(0, 10)
    with pytest.raises(ProtocolError, match="twice"):
        reader.view(0, 10)
    del view
    assert released == [0]
    reader.view(0, 10)


def test_views_are_read_only_and_see_the_writer(writer: ArenaWriter) -> None:
    reader, _ = reader_of(writer)
    slab = writer.allocate(4)
    assert slab is not None
    slab[1][:] = b"abcd"
    view = reader.view(slab[0], 4)
    assert bytes(view) == b"abcd"
    with pytest.raises(TypeError):
        view[0] = 1


def test_last_derived_view_releases_its_slab(writer: ArenaWriter) -> None:
    reader, released = reader_of(writer)
    view = reader.view(0, 4096)
    matrix = np.frombuffer(view, np.float32).reshape(32, 32)
    row = matrix[3:4].T
    piece = memoryview(view)[10:20]
    del view, matrix
    gc.collect()
    assert released == [] and reader.live == 1
    del piece
    assert released == []
    del row
    assert released == [0] and reader.live == 0


def test_views_dropped_in_many_threads(writer: ArenaWriter) -> None:
    reader, released = reader_of(writer)
    views = [[reader.view(n * SMALLEST_SLAB, 100)] for n in range(64)]

    def drop(mine: list[list[memoryview]]) -> None:
        for holder in mine:
            holder.clear()

    threads = [threading.Thread(target=drop, args=(views[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(released) == [n * SMALLEST_SLAB for n in range(64)]


def test_view_outlives_both_ends() -> None:
    writer = ArenaWriter(MIB)
    reader, _ = reader_of(writer)
    slab = writer.allocate(3)
    assert slab is not None
    slab[1][:] = b"abc"
    view = reader.view(slab[0], 3)
    writer.close()
    del reader
    gc.collect()
    assert bytes(view) == b"abc"


def test_neither_end_can_resize_the_file(writer: ArenaWriter) -> None:
    for size in (0, 8 * MIB):
        with pytest.raises(OSError):
            os.ftruncate(writer.fd, size)


def test_unsealed_or_resized_descriptors_are_refused(writer: ArenaWriter) -> None:
    unsealed = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, MIB)
    read, write = os.pipe()
    try:
        for fd, size in ((unsealed, MIB), (read, MIB), (writer.fd, 8 * MIB), (writer.fd, MIB)):
            with pytest.raises(ProtocolError):
                ArenaReader(fd, size, lambda offset: None)
    finally:
        for fd in (unsealed, read, write):
            os.close(fd)


def test_trim_returns_memory(writer: ArenaWriter) -> None:
    slab = writer.allocate(3 * MIB)
    assert slab is not None
    slab[1][:] = b"x" * (3 * MIB)
    assert committed(writer) >= 3 * MIB
    assert not writer.trim()
    writer.release(slab[0])
    assert writer.trim()
    assert committed(writer) == 0
    assert writer.allocate(4 * MIB) is not None


def test_trim_keeps_the_memory_in_use(writer: ArenaWriter) -> None:
    kept, freed = writer.allocate(MIB), writer.allocate(MIB)
    assert kept is not None and freed is not None
    for _, view in (kept, freed):
        view[:] = b"x" * MIB
    writer.release(freed[0])
    assert not writer.trim()
    assert committed(writer) == MIB
    assert bytes(kept[1]) == b"x" * MIB


def test_memory_is_committed_lazily(writer: ArenaWriter) -> None:
    assert committed(writer) == 0
    assert writer.nbytes % mmap.PAGESIZE == 0
