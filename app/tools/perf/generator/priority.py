"""How soon the kernel runs this thread when it wakes up."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
_SLICE_NS: Final = 100_000
"""The shortest: Linux 6.12 lets threads of short slices run before those of long ones (man sched_setattr)."""
_FIRST: Final = os.sched_param(1)
"""The lowest priority of those that come before all ordinary threads."""

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


def run_first(on: bool) -> None:
    """Have this thread run as soon as it wakes up, as far as that is allowed, or like any other one.

    A real-time priority is for root (or CAP_SYS_NICE) alone, a short slice for all.
    """
    policy = os.SCHED_RR if on else os.SCHED_OTHER
    try:
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, _FIRST if on else os.sched_param(0))
    except PermissionError:
        _set_slice(_SLICE_NS if on else 0)


def _set_slice(nanoseconds: int) -> None:
    """Set the slice of this thread, 0 for the usual one, if the kernel knows slices."""
    if _SCHED_SETATTR is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        wanted = _Attributes(size=ctypes.sizeof(_Attributes), nice=nice, runtime=nanoseconds)
        _libc.syscall(_SCHED_SETATTR, 0, ctypes.byref(wanted), 0)
