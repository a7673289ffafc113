"""What processes have on GPUs, by a fake of the driver."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from deployments.replica.gpus import gpu_memory
from deployments.spec import GpuMemory


class FakeNvml(ModuleType):
    """Three GPUs: the first with processes 1 and 2, the second with process 3, the third unused."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        processes: list[list[tuple[int, int | None]]] = [[(1, 100), (2, 30)], [(3, 5)], []]
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: 3
        self.nvmlDeviceGetHandleByIndex = lambda index: index
        self.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=1000, free=700 + handle)

        def running(handle: int) -> list[Any]:
            return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in processes[handle]]

        self.nvmlDeviceGetComputeRunningProcesses = running


def test_gpus_are_those_on_which_the_processes_have_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert gpu_memory({1, 2}) == {0: GpuMemory(130, 700)}
    assert gpu_memory({2, 3}) == {0: GpuMemory(30, 700), 1: GpuMemory(5, 701)}
    assert gpu_memory({9}) == {}


def test_a_driver_that_tells_nothing_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setattr(nvml, "nvmlInit", lambda: 1 / 0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_memory({1}) == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_memory({1}) == {}
