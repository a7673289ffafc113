"""Number of threads that a framework should use for one instance on the CPU.

Imported by the processes of Python models too, whose environments may have no packages of ours.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as mc

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


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


def threads_per_instance(config: mc.ModelConfig, cpus: int | None = None) -> int:
    """Return an equal share of the CPUs for each of the model's CPU instances, at least 1.

    Instances of a model execute at the same time. With the frameworks' default, a thread for every core
    and instance, they compete for the cores.
    """
    groups = config.instance_group
    instances = sum(group.count or 1 for group in groups if group.kind != group.KIND_GPU)
    return max(1, (cpus or available_cpus()) // max(1, instances))
