"""What processes use of this machine's GPUs, as NVIDIA's driver tells (NVML). NEVER RUN: no GPU was at hand.

With MIG the driver tells no figures by process: one that has memory of an instance is charged its slices.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

logger = logging.getLogger(__name__)

_SLICES: Final = 7
"""Of a GPU that is divided by MIG."""


class GpuUse(NamedTuple):
    """What one process uses of a kind of GPU: `share` of one, on average, and bytes."""

    name: str
    share: float
    nbytes: int


class GpuMeter:
    """Reads all GPUs. Where there is none, or no package `nvidia-ml-py`, it says so once by doing nothing."""

    def __init__(self, devices: Path = Path("/dev"), load: Callable[[], Any] | None = None) -> None:
        self._nvml: Any = self._opened(load or _load) if any(devices.glob("nvidia[0-9]*")) else None
        self._since: dict[int, int] = defaultdict(lambda: time.time_ns() // 1000 - 1_000_000)

    def read(self) -> dict[int, GpuUse]:
        """Return the use by process id since the last call, {} where the driver does not tell. Blocks."""
        nvml, found = self._nvml, dict[int, GpuUse]()
        if nvml is None:
            return found
        try:
            for number in range(nvml.nvmlDeviceGetCount()):
                self._read_device(nvml.nvmlDeviceGetHandleByIndex(number), number, found)
        except nvml.NVMLError as error:
            logger.warning("GPUs are not measured any more: %s", error)
            self._nvml = None
        return found

    @staticmethod
    def _opened(load: Callable[[], Any]) -> Any:
        try:
            nvml = load()
            nvml.nvmlInit()
        except Exception as error:  # no package, or no driver
            logger.info("GPUs are not measured: %s", error)
            return None
        return nvml

    def _read_device(self, handle: Any, number: int, found: dict[int, GpuUse]) -> None:
        name = _text(self._nvml.nvmlDeviceGetName(handle))
        if self._divided(handle):
            self._read_instances(handle, name, found)
            return
        shares = self._utilization(handle, number)
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            _add(found, process, name, shares.get(process.pid, 0.0))

    def _divided(self, handle: Any) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError:  # a device without MIG
            return False
        return bool(current)

    def _read_instances(self, handle: Any, name: str, found: dict[int, GpuUse]) -> None:
        nvml = self._nvml
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            except nvml.NVMLError:  # no instance at this place
                continue
            slices = nvml.nvmlDeviceGetAttributes(instance).gpuInstanceSliceCount
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(instance)
            for process in processes:
                _add(found, process, name, slices / _SLICES / len(processes))

    def _utilization(self, handle: Any, number: int) -> dict[int, float]:
        """Return the mean share of the multiprocessors' time by process, since the last call."""
        nvml, sums = self._nvml, defaultdict[int, list[float]](list)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._since[number])
        except nvml.NVMLError:  # there is no sample
            return {}
        for sample in samples:
            self._since[number] = max(self._since[number], sample.timeStamp)
            sums[sample.pid].append(sample.smUtil / 100)
        return {pid: sum(shares) / len(shares) for pid, shares in sums.items()}


def _load() -> Any:
    import pynvml

    return pynvml


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _add(found: dict[int, GpuUse], process: Any, name: str, share: float) -> None:
    """Add to what a process uses; one with GPUs of several kinds counts by the first of them."""
    known = found.get(process.pid, GpuUse(name, 0.0, 0))
    found[process.pid] = GpuUse(known.name, known.share + share, known.nbytes + (process.usedGpuMemory or 0))
