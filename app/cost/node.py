"""Measures what the processes of the server on this node consume, by what they are for."""

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from app.core.cost.amounts import Consumption
from app.core.system.processes import proportional_memory
from app.cost.energy import Energy
from app.cost.gpus import GpuMeter
from app.cost.process_tree import ProcessTree
from app.cost.samples import Key, ProcessMeter, ProcessSample

_GIB: Final = 1 << 30
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_MEMORY_S: Final = 30.0
"""Time in which the memory of each process is measured once: that takes up to milliseconds."""

GroupKey = tuple[str, str]
"""What processes are for, and the kind of their GPU."""


class NodeReading(NamedTuple):
    """What was consumed since the last reading.

    Attributes:
        groups: by what processes are for (`Role.group`), and the kind of their GPU.
        cpu_seconds: of all processes.
        seconds: that have passed.
    """

    groups: Mapping[GroupKey, Consumption]
    cpu_seconds: float
    seconds: float


class NodeMeter:
    """Reads again and again; the first reading is where it begins.

    Args:
        tree: the processes.
    """

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._meter, self._gpus, self._energy = ProcessMeter(), GpuMeter(), Energy()
        self._memory: dict[Key, tuple[float, int]] = {}  # when it was measured, and bytes
        self._at: float | None = None

    def read(self) -> NodeReading:
        """Return what was consumed since the last call. Blocks for some milliseconds."""
        samples, now = self._tree.look(), time.monotonic()
        seconds = 0.0 if self._at is None else now - self._at
        self._at = now
        self._measure_memory(samples, now)
        groups = defaultdict[GroupKey, Consumption](Consumption)
        used = self._meter.take(samples)
        joules = self._energy.joules_per_second()
        for group, ticks in used.items():
            cpu_s = ticks / _TICKS_A_SECOND
            energy = None if joules is None else joules * cpu_s
            groups[group, ""] += Consumption(cpu_seconds=cpu_s, energy_joules=energy)
        for key, sample in samples.items():
            held = self._memory[key][1] / _GIB * seconds
            groups[sample.group, ""] += Consumption(memory_gib_seconds=held)
        self._add_gpus(samples, seconds, groups)
        return NodeReading(groups, sum(used.values()) / _TICKS_A_SECOND, seconds)

    def _measure_memory(self, samples: Mapping[Key, ProcessSample], now: float) -> None:
        """Measure new processes, and those whose last measurement is old."""
        known = self._memory
        self._memory = {}
        for key in samples:
            at, nbytes = known.get(key, (-_MEMORY_S, 0))
            if now - at >= _MEMORY_S:
                at, nbytes = now, proportional_memory((key[0],))
            self._memory[key] = at, nbytes

    def _add_gpus(
        self,
        samples: Mapping[Key, ProcessSample],
        seconds: float,
        groups: defaultdict[GroupKey, Consumption],
    ) -> None:
        kinds = {pid: sample.group for (pid, _), sample in samples.items()}
        for pid, use in self._gpus.read().items():
            if pid in kinds:
                held = use.nbytes / _GIB * seconds
                amount = Consumption(gpu_seconds=use.share * seconds, gpu_gib_seconds=held)
                groups[kinds[pid], use.name] += amount
