"""Tensors passed on without a copy: shared memory is lent to another process of the machine.

A step of an ensemble is sent the outputs of the step before. They lie in the arena of the replica that made
them; the process between only says where. Bodies that a client has sent, and memory that a Python model works
on, lie in an arena of this process itself (`shared_pool.py`). Theory of operation: before it lends from an
arena for the first time, the lender offers the arena, by the name that its descriptor has under /proc. The
borrower maps it and accepts, or does neither: then tensors are copied as before. A lent tensor has a key; the
lender keeps the tensor until the borrower has released the key, in a RELEASE frame like those of slabs.
"""

import fcntl
import os
import re
from collections.abc import Callable
from typing import Any, Final

from app.transport.memory.arena import ArenaReader, Lendable, find_slab
from app.transport.protocol import ProtocolError

MAX_ARENAS: Final = 256
"""Limit of the arenas that one connection lends from, and of those that it borrows from."""

_PATH: Final = re.compile(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}")

Offer = tuple[int, str, int, int]
"""Number of the arena on this connection, path, inode and size in bytes."""


def released_key(key: int) -> int:
    """Return a lent tensor's key as in RELEASE frames: negative, since offsets of slabs are not."""
    return -1 - key


class Lender:
    """The tensors that this end lends to its peer. Not thread-safe."""

    def __init__(self, offer: Callable[[Offer], None]) -> None:
        """`offer` sends an offer to the peer."""
        self._offer = offer
        self._numbers: dict[int, int] = {}  # by inode
        self._accepted: set[int] = set()
        self._lent: dict[int, Any] = {}
        self._next = 0
        self.total = 0

    @property
    def live(self) -> int:
        """Tensors lent at present."""
        return len(self._lent)

    def lend(self, data: Any, nbytes: int) -> tuple[int, int, int, int] | None:
        """Lend the memory of `data` if it lies in an arena that the peer has accepted.

        Returns:
            Offset, size, the arena's number and the tensor's key; None when the tensor has to be copied.
        """
        found = find_slab(data)
        if found is None:
            return None
        home, offset = found
        number = self._numbers.get(home.inode)
        if number is None:
            self._offer_arena(home)
            return None
        if number not in self._accepted:
            return None
        key = self._next
        self._next += 1
        self.total += 1
        self._lent[key] = data
        return offset, nbytes, number, key

    def _offer_arena(self, home: Lendable) -> None:
        if len(self._numbers) < MAX_ARENAS:
            number = self._numbers[home.inode] = len(self._numbers)
            self._offer((number, home.path, home.inode, home.nbytes))

    def accepted(self, number: int) -> None:
        """Record that the peer has mapped an arena."""
        self._accepted.add(number)

    def released(self, key: int) -> None:
        """Release a tensor on behalf of the peer.

        Raises:
            ProtocolError: it was not lent.
        """
        if self._lent.pop(key, None) is None:
            raise ProtocolError(f"release of {key}, which is not lent")

    def clear(self) -> None:
        """Release every tensor, when the connection has ended."""
        self._lent.clear()


class Borrower:
    """The tensors that this end borrows from its peer."""

    def __init__(self, max_arena_bytes: int, released: Callable[[int], None]) -> None:
        """`released` is called in any thread with the `released_key` of a tensor."""
        self._max_bytes = max_arena_bytes
        self._released = released
        self._arenas: dict[int, ArenaReader] = {}

    @property
    def live(self) -> int:
        """Borrowed tensors with views in this process."""
        return sum(arena.live for arena in self._arenas.values())

    def offered(self, offer: Offer) -> bool:
        """Map an offered arena; return False when this process cannot.

        Raises:
            ProtocolError: the offer is malformed, or one too many.
        """
        number, path, inode, nbytes = offer
        if number in self._arenas or len(self._arenas) >= MAX_ARENAS or not _PATH.fullmatch(path):
            raise ProtocolError(f"arena {number} at '{path}' cannot be offered")
        if not 0 < nbytes <= self._max_bytes:
            return False
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:  # the peer may be in another container
            return False
        try:
            # Elsewhere the same path may be another file: never map what is not a sealed memory file.
            fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            if os.fstat(fd).st_ino != inode:
                return False
            self._arenas[number] = ArenaReader(fd, nbytes, self._released)
        except (OSError, ProtocolError):
            return False
        finally:
            os.close(fd)
        return True

    def view(self, offset: int, nbytes: int, number: int, key: int) -> memoryview:
        """Return a view of a lent tensor.

        Raises:
            ProtocolError: there is no such arena, or no such place in it.
        """
        arena = self._arenas.get(number)
        if arena is None or key < 0:
            raise ProtocolError(f"a tensor in arena {number}, which was not accepted")
        return arena.view(offset, nbytes, released_key(key))

    def close(self) -> None:
        """Close the arenas, when the connection has ended; views stay valid."""
        self._arenas.clear()
