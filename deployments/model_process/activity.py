"""Since when a process executes a model's code, as another process may read it at any time.

An execution may hold the interpreter for minutes, during which the process cannot tell anything: what it
wrote before into memory that both share still says that it is busy.
"""

import mmap
import os
import time
from typing import Final

_CELLS: Final = 512
"""Threads of instances that execute at the same time; more share the last cell."""
_BYTES: Final = 8 * _CELLS


class Activity:
    """Cells with the times (`time.monotonic_ns`) at which executions began; 0 while none runs."""

    def __init__(self, descriptor: int = -1) -> None:
        """Map the memory of a descriptor, which stays the caller's, or new memory."""
        self.descriptor = descriptor
        if descriptor < 0:
            self.descriptor = os.memfd_create("nereid-activity", os.MFD_CLOEXEC)
            os.ftruncate(self.descriptor, _BYTES)
        self._map = mmap.mmap(self.descriptor, _BYTES)
        self._cells = memoryview(self._map).cast("q")
        self._used = 0

    def cell(self) -> memoryview:
        """Return the cell of one more thread, a view of one number."""
        index = min(self._used, _CELLS - 1)
        self._used += 1
        return self._cells[index : index + 1]

    def began_ns(self) -> int:
        """Return when the oldest execution that still runs began; 0 when none runs."""
        return min((began for began in self._cells if began), default=0)

    def busy_s(self) -> float:
        """Return for how many seconds an execution has been running; 0 when none runs."""
        began = self.began_ns()
        return max((time.monotonic_ns() - began) / 1e9, 1e-9) if began else 0.0

    def clear(self) -> None:
        """Forget all executions: the process that wrote them has ended."""
        for index in range(_CELLS):
            self._cells[index] = 0
