"""The scheduling policy and time slice of a load generator's thread."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
_SLICE_NS: Final = 100_000
"""The shortest: Linux 6.12 lets threads of short slices run before those of long ones (man sched_setattr)."""
_RESET_ON_FORK: Final = 1

_INHERITED: Final = os.sched_getparam(0).sched_priority
"""That of `chrt`, say, by which a server beside it may run, too; 0 for ordinary processes."""
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
    """Have this thread run as soon as it wakes up, as far as that is allowed, or when it is its turn.

    A real-time priority is for root (or CAP_SYS_NICE) alone, a short slice for all. When it is its turn: by
    the policy of batch jobs a thread has its share of the processors, but interrupts none when it wakes up,
    so a server beside it answers more requests before the generator goes on. What was started with a
    real-time priority keeps that then, which interrupts none of its equals either.
    """
    if not on and not _INHERITED:
        _set_policy(os.SCHED_BATCH, 0)
        return
    priority = min(_INHERITED + on, os.sched_get_priority_max(os.SCHED_RR))
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except PermissionError:
        _set_policy(os.SCHED_OTHER, _SLICE_NS)


def _set_policy(policy: int, slice_ns: int) -> None:
    """Set the policy of this thread, and its slice, 0 for the usual one, if the kernel knows slices."""
    if _SCHED_SETATTR is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        wanted = _Attributes(ctypes.sizeof(_Attributes), policy, _RESET_ON_FORK, nice, runtime=slice_ns)
        _libc.syscall(_SCHED_SETATTR, 0, ctypes.byref(wanted), 0)
