"""Shared memory of this process for large tensors that will go to another one: lent, they are not copied.

An ingress receives the bodies of requests into it, and a replica puts there what a model may change and
return. One for each process, made when it is first needed; where it is full, memory is private and what it
holds is copied on its way.
"""

import threading
from collections import deque
from functools import cache
from time import monotonic
from typing import Final

from app.core.buffers import private
from app.transport.memory.arena import ArenaWriter, Lendable
from app.transport.protocol import ALIGNMENT

FROM_BYTES: Final = 32 << 10
"""Smaller tensors are copied anyway (`TransportSettings.arena_threshold`)."""
_BYTES: Final = 256 << 20
_IDLE_S: Final = 10.0
"""Unused for this long, its memory goes back to the kernel."""


class SharedBufferPool(Lendable):
    """An arena that this process both allocates from and views; from any thread."""

    def __init__(self, nbytes: int, idle_s: float = _IDLE_S) -> None:
        """Create it; `nbytes` is rounded down to a power of two.

        Raises:
            OSError: when the kernel refuses the memory file.
        """
        self._arena = ArenaWriter(nbytes)
        super().__init__(self._arena.fd, self._arena.nbytes, self._arena.memory)
        self._arena.close_fd()
        self._lock = threading.Lock()
        # Not released at once: the collector may drop a slab in the midst of an allocation.
        self._free: deque[int] = deque()
        self._idle_s = idle_s
        self._taken_at = 0.0
        self._watched = False

    def take(self, nbytes: int) -> memoryview | None:
        """Writable memory that lasts as long as any view of it; None when there is no room."""
        with self._lock:
            self._release()
            found = self._arena.allocate(nbytes)
            self._taken_at = monotonic()
            if not self._watched:
                self._watch()
        if found is None:
            return None
        offset, _ = found
        return self._viewed(self._arena.memory, offset, nbytes, offset)

    def _released(self, key: int) -> None:
        self._free.append(key)

    def _release(self) -> None:
        free = self._free
        while free:
            self._arena.release(free.popleft())

    def _watch(self) -> None:
        self._watched = True
        timer = threading.Timer(self._idle_s, self._trim)
        timer.daemon = True
        timer.start()

    def _trim(self) -> None:
        with self._lock:
            self._release()
            idle = monotonic() - self._taken_at >= self._idle_s
            if idle and self._arena.trim():
                self._watched = False
            else:
                self._watch()


@cache
def _of_process() -> SharedBufferPool | None:
    try:
        return SharedBufferPool(_BYTES)
    except OSError:
        return None


def take_aligned(nbytes: int, at: int) -> memoryview:
    """As `take`, with the byte `at` on the boundary: tensors begin there, and aligned they can be lent."""
    start = -at % ALIGNMENT
    return take(start + nbytes)[start:]


def take(nbytes: int) -> memoryview:
    """Writable memory for `nbytes` on a 64-byte boundary: in the workspace of this process if it has room."""
    if nbytes >= FROM_BYTES:
        workspace = _of_process()
        found = None if workspace is None else workspace.take(nbytes)
        if found is not None:
            return found
    # Not a bytearray: that writes zeros, and so takes the memory a client only promised to fill.
    return private(nbytes)
