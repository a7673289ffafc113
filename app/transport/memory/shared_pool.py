"""Shared memory of this process for large tensors that will be sent to another: lent, they are not copied.

An ingress receives the bodies of requests into it, and a replica copies there the inputs that a model may
change and return. Each process has one pool, made at first use; when it is full, memory is private, and
tensors in it are copied when they are sent.
"""

import threading
from collections import deque
from functools import cache
from time import monotonic
from typing import Final

from app.core.buffers import allocate_private
from app.transport.memory.arena import ArenaWriter, Lendable
from app.transport.protocol import ALIGNMENT

FROM_BYTES: Final = 32 << 10
"""Smaller tensors are copied anyway (`TransportSettings.arena_threshold`)."""
_BYTES: Final = 256 << 20
_IDLE_S: Final = 10.0
"""Unused for this long, the pool returns its memory to the kernel."""


class SharedBufferPool(Lendable):
    """An arena that this process both allocates from and views; thread-safe."""

    def __init__(self, nbytes: int, idle_s: float = _IDLE_S) -> None:
        """Make a pool; `nbytes` is rounded down to a power of two.

        Raises:
            OSError: when the kernel refuses the memory file.
        """
        self._arena = ArenaWriter(nbytes)
        super().__init__(self._arena.fd, self._arena.nbytes, self._arena.memory)
        self._arena.close_fd()
        self._lock = threading.Lock()
        # Released at the next allocation: the collector may drop a slab within one, which holds the lock.
        self._free: deque[int] = deque()
        self._idle_s = idle_s
        self._used_at = 0.0
        self._trim_scheduled = False

    def allocate(self, nbytes: int) -> memoryview | None:
        """Allocate writable memory that is valid as long as any view of it; None when the pool is full."""
        with self._lock:
            self._release()
            found = self._arena.allocate(nbytes)
            self._used_at = monotonic()
            if not self._trim_scheduled:
                self._schedule_trim()
        if found is None:
            return None
        offset, _ = found
        return self._make_view(self._arena.memory, offset, nbytes, offset)

    def _released(self, key: int) -> None:
        self._free.append(key)

    def _release(self) -> None:
        free = self._free
        while free:
            self._arena.release(free.popleft())

    def _schedule_trim(self) -> None:
        self._trim_scheduled = True
        timer = threading.Timer(self._idle_s, self._trim)
        timer.daemon = True
        timer.start()

    def _trim(self) -> None:
        with self._lock:
            self._release()
            idle = monotonic() - self._used_at >= self._idle_s
            if idle and self._arena.trim():
                self._trim_scheduled = False
            else:
                self._schedule_trim()


@cache
def _process_pool() -> SharedBufferPool | None:
    try:
        return SharedBufferPool(_BYTES)
    except OSError:
        return None


def allocate_aligned(nbytes: int, at: int) -> memoryview:
    """Allocate with the byte `at` on a 64-byte boundary: a tensor that begins there can be lent."""
    start = -at % ALIGNMENT
    return allocate(start + nbytes)[start:]


def allocate(nbytes: int) -> memoryview:
    """Allocate writable memory on a 64-byte boundary, unless it is small from the pool of this process."""
    if nbytes >= FROM_BYTES:
        pool = _process_pool()
        found = None if pool is None else pool.allocate(nbytes)
        if found is not None:
            return found
    # Not a bytearray: its zeros would commit all memory for a body that a client may never send.
    return allocate_private(nbytes)
