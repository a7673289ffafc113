"""Memory of this process that others are lent: taken, viewed, given back."""

import gc
import os
import threading

import numpy as np
import pytest

from app.transport.memory import shared_pool
from app.transport.memory.arena import find_slab
from app.transport.memory.shared_pool import FROM_BYTES, SharedBufferPool, allocate
from tests.waiting import block_until

MIB = 1 << 20


@pytest.fixture
def small() -> SharedBufferPool:
    return SharedBufferPool(4 * MIB)


def test_memory_is_valid_as_long_as_a_view(small: SharedBufferPool) -> None:
    taken = small.allocate(MIB)
    assert taken is not None and len(taken) == MIB and not taken.readonly
    taken[:4] = b"abcd"
    array = np.frombuffer(taken[:4], np.uint8)
    del taken
    others = [small.allocate(MIB) for _ in range(3)]
    assert small.allocate(MIB) is None, "full: the array holds a quarter"
    for other in others:
        assert other is not None
        other[:] = bytes(MIB)
    assert array.tobytes() == b"abcd"
    del array, other, others
    assert small.allocate(4 * MIB) is not None


def test_memory_of_the_pool_can_be_lent(small: SharedBufferPool) -> None:
    small.allocate(MIB)
    taken = small.allocate(MIB)
    assert taken is not None
    taken[64:72] = b"a tensor"
    found = find_slab(taken[64:72])
    assert found is not None and found[0] is small
    with open(small.path, "rb") as file:
        assert os.fstat(file.fileno()).st_ino == small.inode
        assert os.pread(file.fileno(), 8, found[1]) == b"a tensor"


def test_threads_get_memory_of_their_own(small: SharedBufferPool) -> None:
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(300):
            taken = small.allocate(100_000)
            if taken is not None:
                taken[:] = bytes([mark]) * len(taken)
                if bytes(taken) != bytes([mark]) * len(taken):
                    wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not wrong and small.live == 0


def test_unused_memory_is_returned_to_the_kernel() -> None:
    brief = SharedBufferPool(4 * MIB, idle_s=0.01)

    def committed() -> int:
        return os.stat(brief.path).st_blocks * 512

    taken = brief.allocate(MIB)
    assert taken is not None
    taken[:] = bytes(MIB)
    assert committed() == MIB
    del taken
    block_until(lambda: committed() == 0)
    again = brief.allocate(MIB)
    assert again is not None
    again[:] = bytes(MIB)
    assert committed() == MIB


def test_small_memory_and_overflow_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_slab(allocate(FROM_BYTES)) is not None
    assert find_slab(allocate(FROM_BYTES - 1)) is None
    monkeypatch.setattr(shared_pool, "_process_pool", lambda: SharedBufferPool(MIB))
    large = allocate(2 * MIB)
    assert len(large) == 2 * MIB and find_slab(large) is None
    monkeypatch.setattr(shared_pool, "_process_pool", lambda: None)
    assert len(allocate(MIB)) == MIB
