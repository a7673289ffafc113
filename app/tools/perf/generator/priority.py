"""How soon the kernel runs this thread when it wakes up."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
_SLICE_NS: Final = 100_000
"""The shortest: Linux 6.12 lets threads of short slices run before those of long ones (man sched_setattr)."""
_NICER: Final = 10

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """`struct sched_attr`, in its first version."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    ]


class Priority:
    """The priority of the thread that made it: that which it had, or a higher one."""

    def __init__(self) -> None:
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)

    def set_higher(self, on: bool) -> None:
        """Have it run as soon as it wakes up, as far as that is allowed, or like any other one.

        Less niceness is for root alone, a short slice for all.
        """
        if not on:
            _set(self._nice, 0)
        elif not _set(self._nice - _NICER, _SLICE_NS):
            _set(self._nice, _SLICE_NS)


def _set(nice: int, slice_ns: int) -> bool:
    """Return whether the kernel has done it."""
    if _SCHED_SETATTR is None:
        return False
    wanted = _Attributes(size=ctypes.sizeof(_Attributes), nice=max(nice, -20), runtime=slice_ns)
    return bool(_libc.syscall(_SCHED_SETATTR, 0, ctypes.byref(wanted), 0) == 0)
