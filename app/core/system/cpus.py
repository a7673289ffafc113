"""The processors that this process may use."""

import os
from pathlib import Path
from typing import Final

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_CPUINFO: Final = Path("/proc/cpuinfo")


def available_cpus(quota: Path = _QUOTA) -> int:
    """Return the CPUs this process may use: its affinity mask, or the container's CPU quota if smaller.

    Frameworks count the cores of the machine, and so start too many threads in a container.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = quota.read_text().split()
        return cpus if limit == "max" else max(1, min(cpus, round(int(limit) / int(period))))
    except (OSError, ValueError):
        return cpus


def cpu_flags(path: Path = _CPUINFO) -> frozenset[str]:
    """Return the flags of the first processor, as Linux calls them (`avx2`); none where it does not say."""
    try:
        named = [line.partition(":") for line in path.read_text().splitlines()]
    except OSError:
        return frozenset()
    of_flags = (value for name, _, value in named if name.strip() in ("flags", "Features"))
    return frozenset(next(of_flags, "").split())
