"""Files of clients' regions that stay mapped while requests use them.

A mapped file keeps its memory after the client has deleted it. So a file is mapped at the second use, since
a region that is used once costs less without; it is unmapped when it was not used for a second or two, and
one that was deleted also before another is mapped.
"""

import os
from collections.abc import Callable
from typing import Any, Final

from app.core.errors import InferError
from app.core.tensors import RegionSlice
from app.native.extension import Mapping

MAX_MAPPED: Final = 64
"""Files that are mapped, or were used once; beyond it the one that was used least recently is forgotten."""
IDLE_S: Final = 1.0
"""Time between two looks at which files were used."""


class MappedRegions:
    """The mapped files of this process. Runs on the data-plane loop."""

    def __init__(
        self, open_file: Callable[[RegionSlice], int], later: Callable[[float, Callable[[], None]], Any]
    ) -> None:
        """Make an object without files.

        Args:
            open_file: returns a descriptor, or raises InferError.
            later: calls a function on the loop after so many seconds.
        """
        self._open = open_file
        self._later = later
        self._files: dict[int, Mapping | None] = {}  # by inode, last used last; None after one use
        self._used: set[int] = set()
        self._looking = False

    def read(self, place: RegionSlice, into: memoryview) -> bool:
        """Fill a buffer from a region; return False where the file has to be read, or is not what it was."""
        mapping = self._mapping(place)
        return mapping is not None and (mapping.read(into, place.offset) or self._forget(place))

    def write(self, place: RegionSlice, data: memoryview) -> bool:
        """Write a buffer to a region; return False as `read`."""
        mapping = self._mapping(place)
        return mapping is not None and (mapping.write(data, place.offset) or self._forget(place))

    def _mapping(self, place: RegionSlice) -> Mapping | None:
        inode = place.inode
        known = inode in self._files
        mapping = self._files.pop(inode, None)
        if known and mapping is None:
            self._look(IDLE_S)
            mapping = self._mapped(place)
        self._files[inode] = mapping
        self._used.add(inode)
        if len(self._files) > MAX_MAPPED:
            del self._files[next(iter(self._files))]
        return mapping

    def _mapped(self, place: RegionSlice) -> Mapping | None:
        self._keep(lambda inode, mapping: mapping is None or mapping.linked)
        try:
            descriptor = self._open(place)
        except InferError:  # who opens the file instead gets the error again
            return None
        try:
            return Mapping(descriptor)
        except OSError:  # it is empty, say
            return None
        finally:
            os.close(descriptor)

    def _forget(self, place: RegionSlice) -> bool:
        del self._files[place.inode]
        return False

    def _look(self, delay: float) -> None:
        if not self._looking:
            self._looking = True
            self._later(delay, self._drop_unused)

    def _drop_unused(self) -> None:
        self._looking = False
        self._keep(lambda inode, mapping: inode in self._used and (mapping is None or mapping.linked))
        self._used.clear()
        if self._files:
            self._look(IDLE_S)

    def _keep(self, wanted: Callable[[int, Mapping | None], bool]) -> None:
        self._files = {inode: mapping for inode, mapping in self._files.items() if wanted(inode, mapping)}
