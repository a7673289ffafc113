"""Shared memory for the tensors of a connection's messages, used again from one message to the next.

Each end sends from an arena of its own (`app/transport/memory`), which the other end maps when the first such
message comes. A message says where its tensors lie; when the last view of them is dropped, the next message
in the other direction says so, or one of its own if there is no other. Memory that is new for each message
costs more than the copy of the tensors: the kernel has to clear its pages, and to map them in both processes.

As with other arenas, neither end can shrink what the other reads, but a process may still write to what it
has sent, or was sent: to its own harm, because no other process has this arena.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from app.core.tensors import Buffer
from app.transport.memory.arena import ArenaReader, find_slab
from app.transport.memory.shared_pool import SharedBufferPool
from app.transport.protocol import ALIGNMENT, ProtocolError

ARENA_BYTES: Final = 64 << 20
"""Of each end of a connection; committed are the pages in use, and those used within the last ten seconds."""


def padded(nbytes: int) -> int:
    """Return the distance from a tensor of `nbytes` to the next one."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT


class SentTensors:
    """Memory of the tensors that this end sends; thread-safe."""

    def __init__(self) -> None:
        self._pool: SharedBufferPool | None = None
        self._descriptor = -1
        self._sent: dict[int, memoryview] = {}
        self._lock = threading.Lock()
        self._placing = 0

    @property
    def live(self) -> int:
        """Messages whose tensors the other end still uses."""
        return len(self._sent)

    def place(self, buffers: Sequence[Buffer], nbytes: int) -> int | None:
        """Copy the tensors of a message, `nbytes` with padding; return where, None when there is no room."""
        if self._placing == threading.get_ident():  # called by a destructor while this thread allocates
            return None
        with self._lock:
            self._placing = threading.get_ident()
            try:
                view = self._allocate(nbytes)
            finally:
                self._placing = 0
        if view is None:
            return None
        found = find_slab(view)
        assert found is not None
        _, offset = found
        _copy(buffers, view)
        self._sent[offset] = view
        return offset

    def release(self, offsets: Iterable[int]) -> None:
        """Release what the other end no longer uses.

        Raises:
            ValueError: it was not sent.
        """
        for offset in offsets:
            if self._sent.pop(offset, None) is None:
                raise ValueError("a release of tensors that were not sent")

    def take_descriptor(self) -> int:
        """Return the arena's descriptor for the first message with tensors there; -1 for later ones."""
        taken, self._descriptor = self._descriptor, -1
        return taken

    def close(self) -> None:
        """Close the descriptor, if it was not sent."""
        if (descriptor := self.take_descriptor()) >= 0:
            os.close(descriptor)

    def _allocate(self, nbytes: int) -> memoryview | None:
        if nbytes > ARENA_BYTES:
            return None
        if self._pool is None:
            with suppress(OSError):
                pool = SharedBufferPool(ARENA_BYTES)
                self._descriptor = os.open(pool.path, os.O_RDWR | os.O_CLOEXEC)
                self._pool = pool
        return None if self._pool is None else self._pool.allocate(nbytes)


class ReceivedTensors:
    """Memory of the tensors that the other end sends."""

    def __init__(self) -> None:
        self._arena: ArenaReader | None = None
        self._released: deque[int] = deque()
        self._viewed = 0
        self._taken = 0

    @property
    def held(self) -> int:
        """Messages whose tensors the other end takes to be used here."""
        return self._viewed - self._taken

    @property
    def has_released(self) -> bool:
        """Whether the other end is to be told that some are not, any more."""
        return bool(self._released)

    def map(self, descriptor: int, writable: bool) -> None:
        """Map the other end's arena.

        Raises:
            ValueError: it is no arena, or the second one.
        """
        nbytes = os.fstat(descriptor).st_size
        if self._arena is not None or not 0 < nbytes <= ARENA_BYTES:
            raise ValueError("an arena that was not expected")
        try:
            self._arena = ArenaReader(descriptor, nbytes, self._released.append, writable)
        except ProtocolError as error:
            raise ValueError(str(error)) from error

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Return a view of a message's tensors, whose last view releases them.

        Raises:
            ValueError: they lie outside the arena, or are in use here.
        """
        if self._arena is None:
            raise ValueError("tensors in an arena that was not sent")
        try:
            view = self._arena.view(offset, nbytes)
        except ProtocolError as error:
            raise ValueError(str(error)) from error
        self._viewed += 1
        return view

    def take_released(self, most: int) -> list[int]:
        """Return what is no longer used here, for the other end; each once, and at most so many."""
        released = self._released
        if not released:
            return []
        taken = [released.popleft() for _ in range(min(len(released), most))]
        self._taken += len(taken)
        return taken


def _copy(buffers: Sequence[Buffer], target: memoryview) -> None:
    """Copy buffers one after the other, each to a multiple of `ALIGNMENT`; large ones without the GIL."""
    memory = np.frombuffer(target, np.uint8)
    position = 0
    for buffer in buffers:
        if nbytes := len(buffer):
            memory[position : position + nbytes] = np.frombuffer(buffer, np.uint8)
            position += padded(nbytes)
