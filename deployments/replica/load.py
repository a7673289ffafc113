"""The load of a replica, as the autoscaler reads it."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, Final

from app.core.errors import FailureReason, unsupported
from app.core.observability.statistics import Statistics
from app.core.system.processes import own_tree, proportional_memory
from deployments.execution.queued_request import QueuedRequest
from deployments.replica.gpus import gpu_memory
from deployments.replica.served_model import ServedModel
from deployments.spec import GpuMemory, ReplicaLoad

_MEASURE_S: Final = 10.0
"""Time from one measurement of memory to the next, which walks the page tables."""
_CGROUP: Final = Path("/sys/fs/cgroup")


class LoadStatistics(Statistics):
    """Counters that also tell how long requests were queued and executed; only scaled models have them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.executing_ns = self.waiting_ns = 0
        self.waits: Counter[int] = Counter()
        self.memory = Memory()

    new_durations = None  # `record_success` does more

    def record_success(self, total_ns: int, queue_ns: int) -> None:
        """Record a request that succeeded."""
        super().record_success(total_ns, queue_ns)
        self.executing_ns += total_ns - queue_ns
        self.waiting_ns += queue_ns
        self.waits[max(queue_ns, 0).bit_length()] += 1

    def record_failure(self, total_ns: int, reason: FailureReason) -> None:
        """Record a request that failed; one that was rejected has only waited."""
        super().record_failure(total_ns, reason)
        if reason is FailureReason.REJECTED:
            self.waiting_ns += total_ns
        else:
            self.executing_ns += total_ns


async def replica_load(served: ServedModel, node: str) -> ReplicaLoad:
    """Return the load of a replica on this node.

    Raises:
        InferError: UNSUPPORTED for a model that is not scaled.
    """
    counted = served.statistics
    if not isinstance(counted, LoadStatistics):
        raise unsupported(f"model '{served.model.name}' is not scaled by its load")
    memory_bytes, gpus = await counted.memory.measure()
    scheduler, config, counters = served.scheduler, served.config, counted.report()
    batches = bool(config.WhichOneof("scheduling_choice")) and config.max_batch_size > 1
    now = time.monotonic_ns()
    executing_ns, waiting_ns = _unfinished(served.in_flight, now)
    return ReplicaLoad(
        at_ns=now,
        executing_ns=counted.executing_ns + executing_ns,
        waiting_ns=counted.waiting_ns + waiting_ns,
        arrived=counted.succeeded + counters.fail.count + served.outstanding,
        executed=counters.compute_infer.count,
        rows=counters.inference_count,
        waits=dict(counted.waits),
        in_flight=served.outstanding,
        oldest_ns=scheduler.queue_age_ns,
        places=max(scheduler.admission.instances, 1) * (config.max_batch_size if batches else 1),
        batches=batches,
        sequences=scheduler.sequences,
        node=node,
        memory_bytes=memory_bytes,
        free_bytes=free_memory(),
        gpus=gpus,
    )


def _unfinished(requests: Collection[QueuedRequest], now: int) -> tuple[int, int]:
    """Return how long these requests have executed and waited so far, together."""
    executing_ns = waiting_ns = 0
    for request in requests:
        started = request.dispatch_ns or now
        executing_ns += now - started
        waiting_ns += started - request.arrival_ns
    return executing_ns, waiting_ns


class Memory:
    """Measures the memory of this process and those below it, at most every `_MEASURE_S`."""

    def __init__(self) -> None:
        self._measured: tuple[int, dict[int, GpuMemory]] = 0, {}
        self._at = -_MEASURE_S

    async def measure(self) -> tuple[int, dict[int, GpuMemory]]:
        """Return the last measurement, in bytes and of each GPU, after a new one where that is due."""
        now = time.monotonic()
        if now - self._at >= _MEASURE_S:
            self._at = now
            self._measured = await asyncio.to_thread(_memory)
        return self._measured


def _memory() -> tuple[int, dict[int, GpuMemory]]:
    pids = own_tree()
    return proportional_memory(pids), gpu_memory(pids)


def free_memory() -> int:
    """Return the bytes that new processes of this node may use, by proc(5) and the limit of the cgroup."""
    free = _kilobytes(Path("/proc/meminfo").read_text(), "MemAvailable:") << 10
    limit = _cgroup_limit()
    return free if limit is None else min(free, limit - _cgroup_used())


def _kilobytes(text: str, name: str) -> int:
    found = (line.split() for line in text.splitlines() if line.startswith(name))
    return next((int(words[1]) for words in found), 0)


@cache
def _cgroup_limit() -> int | None:
    """Return the memory limit of this container; None without one (cgroup v2)."""
    try:
        text = (_CGROUP / "memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _cgroup_used() -> int:
    """Return what counts against that limit, without the page cache that can be dropped."""
    used = int((_CGROUP / "memory.current").read_text())
    files = (line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    return used - next((int(words[1]) for words in files if words[0] == "inactive_file"), 0)
