"""The thread of the data plane."""

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from app.transport.loops import thread
from app.transport.loops.thread import LoopThread
from tests.waiting import block_until


@pytest.fixture
def plane() -> Iterator[LoopThread]:
    made = LoopThread("test")
    gc.disable()
    yield made
    gc.enable()
    made.stop()


class Circle:
    """Garbage that its reference count does not free."""

    def __init__(self) -> None:
        self.itself = self


def wait_collected(reference: "weakref.ref[Circle]") -> None:
    block_until(lambda: reference() is None)


def test_garbage_is_collected_though_few_objects_are_made(plane: LoopThread) -> None:
    plane.schedule_gc(0.01)
    for _ in range(3):
        wait_collected(weakref.ref(Circle()))


def test_old_garbage_is_collected_when_idle(plane: LoopThread) -> None:
    circle = Circle()
    gc.collect()  # it is old now
    reference = weakref.ref(circle)
    plane.schedule_gc(0.01)
    gc.collect(1)
    busy: list[list[object]] = [[] for _ in range(2000)]
    del circle
    wait_collected(reference)
    assert len(busy) == 2000


HEAP = """
import psutil
from app.transport.loops import thread
thread.freeze_heap()
pinned, large = [], []
for _ in range(160):
    large.append(b"x" * (1 << 20))
    pinned.append(b"x" * 100_000)
held = psutil.Process().memory_info().rss
large.clear()
thread.trim_malloc(64 << 20)
assert psutil.Process().memory_info().rss < held - (128 << 20)
"""


def test_little_freed_memory_is_kept_when_idle_for_long(
    plane: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: what was returned still counts as free."""
    kept: list[int] = []
    monkeypatch.setattr(thread, "trim_malloc", kept.append)
    monkeypatch.setattr(thread, "_IDLE_OBJECTS", 1 << 30)
    monkeypatch.setattr(thread, "_FULL_PAUSE", 0)  # each collection returns memory
    plane.schedule_gc(0.001)
    block_until(lambda: len(kept) >= 2 * thread._LONG_IDLE)
    assert kept.count(64 << 20) == 1 and max(kept) == 512 << 20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_freed_memory_below_a_live_block_is_returned() -> None:
    subprocess.run([sys.executable, "-c", HEAP], check=True)
