"""Host policies (`--host-policy`): the processors and the memory that an instance's thread uses.

Source: src/numa_utils.cc of Triton's core. A new thread inherits both from the thread that starts it, so the
threads that a framework starts in the instance's thread are bound too.
"""

import ctypes
import os
import platform
from collections.abc import Mapping
from typing import Final

from app.core.errors import internal, invalid_arg

CPU_CORES: Final = "cpu-cores"
NUMA_NODE: Final = "numa-node"
_MPOL_BIND: Final = 2
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
"""Numbers of the system call, for which the C library has no function."""

_MASK_BITS: Final = 1024


def apply(policy: Mapping[str, str]) -> None:
    """Apply a policy to the calling thread; other keys are for backends and are ignored here.

    Raises:
        InferError: INVALID_ARG for a value that cannot be read, INTERNAL when the kernel refuses; Triton's
            texts.
    """
    if CPU_CORES in policy:
        cores = parse_cores(policy[CPU_CORES])
        try:
            os.sched_setaffinity(0, cores)  # 0 is the calling thread
        except (OSError, ValueError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise internal(f"Unable to set NUMA thread affinity: {reason}") from None
    if NUMA_NODE in policy:
        _bind_memory(_integer("Parsing 'numa-node' value", policy[NUMA_NODE]))


def parse_cores(text: str) -> set[int]:
    """Read `0-3,8-11`.

    Raises:
        InferError: INVALID_ARG for another form; Triton's texts.
    """
    cores: set[int] = set()
    for entry in text.split(","):
        lower, dash, upper = entry.partition("-")
        if not dash:
            raise invalid_arg(
                "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. "
                f"Got {entry}"
            )
        first, last = (_integer("Parsing 'cpu-cores' value", bound) for bound in (lower, upper))
        cores.update(range(first, min(last, first + _MASK_BITS) + 1))
    return cores


def _integer(message: str, text: str) -> int:
    if not text.isdecimal():
        raise invalid_arg(f"{message}: Can't parse '{text}' to integer")
    return int(text)


def _bind_memory(node: int) -> None:
    """Bind the memory of the calling thread to one NUMA node."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or node >= _MASK_BITS:
        raise internal("Unable to set NUMA memory policy: not available on this machine")
    library = ctypes.CDLL(None, use_errno=True)
    words = _MASK_BITS // 64
    mask = (ctypes.c_ulong * words)()
    mask[node // 64] = 1 << node % 64
    # The kernel expects one more than the number of bits.
    if library.syscall(number, _MPOL_BIND, mask, _MASK_BITS + 1) != 0:
        raise internal(f"Unable to set NUMA memory policy: {os.strerror(ctypes.get_errno())}")
