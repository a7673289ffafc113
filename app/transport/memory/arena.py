"""Shared memory that carries large tensors between two processes of one machine.

Each end of a connection owns one arena, an anonymous memfd whose descriptor it gave to the peer when the
connection opened, and is the only writer of it. A tensor's frame then holds an offset and a size. The reader
releases a slab when the last view of it is dropped, in any thread, and sends a RELEASE frame. Nothing has a
name in the file system: nothing can be guessed, and nothing is left behind by a crash.
"""

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from app.core.buffers import OwnedArray
from app.transport.protocol import ALIGNMENT, ProtocolError

SMALLEST_SLAB: Final = 64 << 10
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ArenaWriter:
    """The owner's side: allocates slabs, and frees them when the reader has released them.

    A slab is a power of two of address space; the kernel commits only the pages that were written. Freed
    slabs are listed by size, the last used first because its pages are warm; neighbours are joined only when
    an allocation finds nothing (a buddy allocator with lazy joining). Not thread-safe.
    """

    def __init__(self, nbytes: int) -> None:
        """Create an arena; `nbytes` is rounded down to a power of two, at least one slab.

        Raises:
            OSError: when the kernel refuses the memory file.
        """
        self.nbytes = max(SMALLEST_SLAB, 1 << (nbytes.bit_length() - 1))
        self.fd = os.memfd_create("nereid-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.nbytes)
            # A peer that could shrink the file could kill us with SIGBUS, and we the peer.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.fd, self.nbytes)
        except BaseException:
            os.close(self.fd)
            raise
        self._view = memoryview(self._map)
        self._free: dict[int, list[int]] = {self.nbytes: [0]}
        self._live: dict[int, int] = {}
        self._joinable = False
        self.used_bytes = 0
        self.allocations = 0
        self.refusals = 0

    @property
    def live(self) -> int:
        """Slabs in use."""
        return len(self._live)

    @property
    def memory(self) -> memoryview:
        """All of it, writable."""
        return self._view

    def allocate(self, nbytes: int) -> tuple[int, memoryview] | None:
        """Allocate a slab: return its offset and a writable view of `nbytes`; None when the arena is full."""
        size = max(SMALLEST_SLAB, 1 << (nbytes - 1).bit_length())
        offset = self._pop(size)
        if offset is None and self._joinable:
            self._join()
            offset = self._pop(size)
        if offset is None:
            self.refusals += 1
            return None
        self._live[offset] = size
        self.used_bytes += size
        self.allocations += 1
        return offset, self._view[offset : offset + nbytes]

    def release(self, offset: int) -> None:
        """Free a slab.

        Raises:
            ProtocolError: no slab in use begins at this offset.
        """
        size = self._live.pop(offset, 0)
        if not size:
            raise ProtocolError(f"release of {offset}, which is no slab in use")
        self.used_bytes -= size
        self._free.setdefault(size, []).append(offset)
        self._joinable = True

    def _pop(self, size: int) -> int | None:
        """Pop the smallest free slab that fits, and return the halves that are left over."""
        found = size
        while not self._free.get(found):
            found <<= 1
            if found > self.nbytes:
                return None
        offset = self._free[found].pop()
        while found > size:
            found >>= 1
            self._free.setdefault(found, []).append(offset + found)
        return offset

    def _join(self) -> None:
        """Merge free buddies into larger slabs."""
        self._joinable = False
        size = SMALLEST_SLAB
        while size < self.nbytes:
            alone = set(self._free.pop(size, ()))
            whole = [offset for offset in alone if not offset & size and offset + size in alone]
            for offset in whole:
                alone -= {offset, offset + size}
            self._free[size] = sorted(alone, reverse=True)
            self._free.setdefault(size << 1, []).extend(whole)
            size <<= 1

    def trim(self) -> bool:
        """Return the memory of free slabs to the kernel; return whether no slab is in use."""
        if not self._live:
            self._free = {self.nbytes: [0]}
            self._joinable = False
        # MADV_REMOVE punches a hole into the file, which frees the pages in both processes.
        for size, offsets in self._free.items():
            for offset in offsets:
                self._map.madvise(mmap.MADV_REMOVE, offset, size)
        return not self._live

    def close_fd(self) -> None:
        """Close the descriptor, once the peer has its own; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Unmap, unless a view is still alive; then the last one does."""
        self.close_fd()
        self._view.release()
        try:
            self._map.close()
        except BufferError:
            pass


class Slab(OwnedArray):
    """A view of a slab that knows its arena, so that it can be lent (`lending.py`)."""

    home: "Lendable"


class _SlabRef(weakref.ref[npt.NDArray[Any]]):
    """A weak reference with the key to release when it dies."""

    __slots__ = ("key",)
    key: int


def find_slab(data: Any) -> "tuple[Lendable, int] | None":
    """Return arena and offset of `data`, a contiguous non-empty view; None unless it is aligned in a slab."""
    owner: Any = data.obj if type(data) is memoryview else None
    while owner is not None and type(owner) is not Slab:  # an array over the view of a slab, say
        owner = owner.obj if type(owner) is memoryview else getattr(owner, "base", None)
    if owner is None:
        return None
    offset = _address(data) - owner.home.address
    return None if offset % ALIGNMENT else (owner.home, offset)


def _address(memory: Any) -> int:
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address


class Lendable:
    """An arena in this process whose slabs are released with their last view, and can be lent.

    Slices, reshapes and memoryviews of a view count as views. The arena's name under /proc identifies it.
    """

    def __init__(self, fd: int, nbytes: int, memory: Any) -> None:
        """`memory` is the mapping of `fd`, of which a duplicate stays open as long as this object lives."""
        self.nbytes = nbytes
        self.inode = os.fstat(fd).st_ino
        self.address = _address(memory)
        kept = os.dup(fd)
        self.path = f"/proc/{os.getpid()}/fd/{kept}"
        weakref.finalize(self, os.close, kept)
        self._refs: dict[int, _SlabRef] = {}

    @property
    def live(self) -> int:
        """Slabs with views in this process."""
        return len(self._refs)

    def _make_view(self, memory: Any, offset: int, nbytes: int, key: int) -> memoryview:
        slab = np.frombuffer(memory, np.uint8, nbytes, offset).view(Slab)
        slab.home = self
        reference = _SlabRef(slab, self._dropped)
        reference.key = key
        self._refs[key] = reference
        return slab.data

    def _dropped(self, reference: weakref.ref[npt.NDArray[Any]]) -> None:
        assert isinstance(reference, _SlabRef)
        # In this order: the offset may be reused as soon as it is released.
        del self._refs[reference.key]
        self._released(reference.key)

    def _released(self, key: int) -> None:
        """Handle the end of a slab's last view: in any thread, also within garbage collection."""
        raise NotImplementedError


class ArenaReader(Lendable):
    """The peer's side: maps the arena and makes views that release their slab.

    `released(key)`, by default with the slab's offset, is called when the last view of a slab is dropped: in
    any thread, also within garbage collection, so it must neither block nor raise.
    """

    def __init__(self, fd: int, nbytes: int, released: Callable[[int], None], writable: bool = False) -> None:
        """Map the arena of a peer. The caller closes `fd`; a duplicate stays open while this object lives.

        Args:
            fd: the arena's descriptor.
            nbytes: its size.
            released: see above.
            writable: whether views may be written to.

        Raises:
            ProtocolError: the descriptor is no sealed memory file of that size.
        """
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(fd).st_size != nbytes:
                raise ProtocolError("the peer's arena is not sealed or not of the announced size")
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self._map = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, access)
            super().__init__(fd, nbytes, self._map)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"the peer's arena cannot be mapped: {error}") from error
        self._on_released = released

    def view(self, offset: int, nbytes: int, key: int | None = None) -> memoryview:
        """Return a view of a slab that the peer has written; with a `key`, of part of a slab under that key.

        Raises:
            ProtocolError: it is not within the arena, or already in use here.
        """
        unit = SMALLEST_SLAB if key is None else ALIGNMENT
        key = offset if key is None else key
        if offset < 0 or nbytes <= 0 or offset % unit or offset + nbytes > self.nbytes:
            raise ProtocolError(f"slab at {offset} of {nbytes} bytes is outside the arena of {self.nbytes}")
        if key in self._refs:
            raise ProtocolError(f"slab at {offset} was sent twice")
        return self._make_view(self._map, offset, nbytes, key)

    def _released(self, key: int) -> None:
        self._on_released(key)
