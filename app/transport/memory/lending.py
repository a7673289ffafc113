"""Tensors handed on without a copy: what lies in shared memory is lent to another process of the machine.

A step of an ensemble is sent what the step before has answered. Those bytes lie in the arena of the replica
that answered; the process between them only says where. What a client has sent, and what a Python model is
given to work on, lie in memory of this process's own (`shared_pool.py`). Theory of operation: the first time
that it has something to lend from an arena it offers the arena, by the name that its descriptor has under
/proc; the borrower maps it and says so, or not: then tensors are copied as before. A lent tensor has a key;
the lender holds on to it until the borrower has let go of the key, in a RELEASE frame like those of its own
slabs.
"""

import fcntl
import os
import re
from collections.abc import Callable
from typing import Any, Final

from app.transport.memory.arena import ArenaReader, Lendable, slab_of
from app.transport.protocol import ProtocolError

MAX_ARENAS: Final = 256
"""Arenas that a connection lends from, and that it borrows from."""

_PATH: Final = re.compile(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}")

Offer = tuple[int, str, int, int]
"""Number of the arena on this connection, path, inode and size in bytes."""


def released_key(key: int) -> int:
    """A lent tensor's key as RELEASE frames carry it: negative, since offsets of slabs are not."""
    return -1 - key


class Lender:
    """What this end lends to its peer. For the event loop alone."""

    def __init__(self, offer: Callable[[Offer], None]) -> None:
        """`offer` tells the peer of an arena."""
        self._offer = offer
        self._numbers: dict[int, int] = {}  # by inode
        self._accepted: set[int] = set()
        self._lent: dict[int, Any] = {}
        self._next = 0
        self.total = 0

    @property
    def live(self) -> int:
        """Tensors that the peer still holds."""
        return len(self._lent)

    def lend(self, data: Any, nbytes: int) -> tuple[int, int, int, int] | None:
        """Lend what `data` is a view of, if that lies in an arena.

        Returns:
            Offset, size, the arena's number and the tensor's key; None when it has to be copied.
        """
        found = slab_of(data)
        if found is None:
            return None
        home, offset = found
        number = self._numbers.get(home.inode)
        if number is None:
            self._introduce(home)
            return None
        if number not in self._accepted:
            return None
        key = self._next
        self._next += 1
        self.total += 1
        self._lent[key] = data
        return offset, nbytes, number, key

    def _introduce(self, home: Lendable) -> None:
        if len(self._numbers) < MAX_ARENAS:
            number = self._numbers[home.inode] = len(self._numbers)
            self._offer((number, home.path, home.inode, home.nbytes))

    def accepted(self, number: int) -> None:
        """The peer has mapped an arena."""
        self._accepted.add(number)

    def released(self, key: int) -> None:
        """The peer has let go of a tensor.

        Raises:
            ProtocolError: it was not lent.
        """
        if self._lent.pop(key, None) is None:
            raise ProtocolError(f"release of {key}, which is not lent")

    def clear(self) -> None:
        """The connection has ended."""
        self._lent.clear()


class Borrower:
    """What this end borrows from its peer."""

    def __init__(self, max_arena_bytes: int, released: Callable[[int], None]) -> None:
        """`released` is called in any thread with what the RELEASE of a tensor is to say."""
        self._max_bytes = max_arena_bytes
        self._released = released
        self._arenas: dict[int, ArenaReader] = {}

    @property
    def live(self) -> int:
        """Lent tensors that views in this process still hold."""
        return sum(arena.live for arena in self._arenas.values())

    def offered(self, offer: Offer) -> bool:
        """Map an arena; False when this process cannot reach it.

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
        except OSError:  # of another container, say
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
        """View a lent tensor.

        Raises:
            ProtocolError: there is no such arena, or no such place in it.
        """
        arena = self._arenas.get(number)
        if arena is None or key < 0:
            raise ProtocolError(f"a tensor in arena {number}, which was not accepted")
        return arena.view(offset, nbytes, released_key(key))

    def close(self) -> None:
        """The connection has ended; views stay valid."""
        self._arenas.clear()
