"""The resource use of this replica: memory of its processes and of GPUs, and when it was used last."""

import asyncio
import time
import uuid
from typing import Final

from app.core.residency import ReplicaUse
from app.core.system.processes import own_tree, proportional_memory
from deployments.replica.gpus import gpu_memory
from deployments.replica.served_model import ServedModel

_MEASURE_S: Final = 5.0
"""Least time between two measurements, which cost milliseconds for each process."""


class UseMeter:
    """Answers the `USE` verb. Memory is measured at the first call, and again after executions."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self._replica = uuid.uuid4().hex
        self._started_ns = time.time_ns()
        self._measured_at = 0.0
        self._measured_after = -1
        self._nbytes = 0
        self._measuring = asyncio.Lock()

    async def read(self) -> ReplicaUse:
        """Return what is used now."""
        served = self._served
        counters = served.statistics.counters
        async with self._measuring:  # several ingresses ask: none is told 0 while the first one waits
            now = time.monotonic()
            last_ns = counters.last_inference_ns
            if self._measured_after != last_ns and now - self._measured_at >= _MEASURE_S:
                self._measured_after, self._measured_at = last_ns, now
                self._nbytes = await asyncio.to_thread(memory_bytes)
        used_ns = max(counters.last_inference_ns, self._started_ns)
        idle_s = 0.0 if served.outstanding else max(1e-9, (time.time_ns() - used_ns) / 1e9)
        return ReplicaUse(self._replica, self._nbytes, idle_s, served.scheduler.sequences)


def memory_bytes() -> int:
    """Return the memory of this process and those below it, and what they have on GPUs."""
    pids = own_tree()
    return proportional_memory(pids) + sum(gpu.used for gpu in gpu_memory(pids).values())
