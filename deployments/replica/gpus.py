"""The GPU memory of processes, read from NVIDIA's driver."""

from collections.abc import Collection
from typing import Any

from deployments.spec import GpuMemory


def gpu_memory(pids: Collection[int]) -> dict[int, GpuMemory]:
    """Return what processes have on each GPU of this node, and what is free there; only of those they use.

    Empty where the driver does not tell.
    """
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handles = {i: nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())}
        used = {
            i: _used(nvml.nvmlDeviceGetComputeRunningProcesses(each), pids) for i, each in handles.items()
        }
        return {
            i: GpuMemory(nbytes, nvml.nvmlDeviceGetMemoryInfo(handles[i]).free)
            for i, nbytes in used.items()
            if nbytes
        }
    except Exception:  # no package, no driver, no device, or a driver that keeps it to itself
        return {}


def _used(processes: Collection[Any], pids: Collection[int]) -> int:
    return sum(process.usedGpuMemory or 0 for process in processes if process.pid in pids)
