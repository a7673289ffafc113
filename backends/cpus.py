"""Number of threads that a framework should use for one instance on the CPU.

Imported by the processes of Python models too, whose environments may have no packages of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.system.cpus import available_cpus

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as mc


def cpu_instances(config: mc.ModelConfig) -> int:
    """Return how many instances of a model execute on the CPU; at least 1."""
    groups = config.instance_group
    return max(1, sum(group.count or 1 for group in groups if group.kind != group.KIND_GPU))


def threads_per_instance(config: mc.ModelConfig, cpus: int | None = None) -> int:
    """Return an equal share of the CPUs for each of the model's CPU instances, at least 1.

    Instances of a model execute at the same time. With the frameworks' default, a thread for every core
    and instance, they compete for the cores.
    """
    return max(1, (cpus or available_cpus()) // cpu_instances(config))
