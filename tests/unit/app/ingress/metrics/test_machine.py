"""Processors, memory and GPUs as metric families."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from prometheus_client.metrics_core import Metric

from app.ingress.metrics.machine import Machine


def values(metrics: list[Metric], *prefixes: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Labels and value of each sample, by the families whose names begin so."""
    return {
        metric.name: [(sample.labels, sample.value) for sample in metric.samples]
        for metric in metrics
        if metric.name.startswith(prefixes)
    }


def test_processors_and_memory(tmp_path: Path) -> None:
    def ticks(busy: int, idle: int) -> None:
        (tmp_path / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n")

    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\nHuge: 0\n")
    ticks(100, 100)
    now = [0.0]
    machine = Machine(True, False, 2000, tmp_path, lambda: now[0])
    ticks(130, 110)
    assert values(machine.read(), "nv_cpu") == {
        "nv_cpu_utilization": [({}, 0.75)],
        "nv_cpu_memory_total_bytes": [({}, 1_024_000)],
        "nv_cpu_memory_used_bytes": [({}, 614_400)],
    }
    ticks(230, 110)
    now[0] = 1.0
    assert machine.read()[0].samples[0].value == 0.75, "the last reading, within the interval"
    now[0] = 2.5
    assert machine.read()[0].samples[0].value == 1.0
    pinned = [gauge.name for gauge in Machine(False, False, 2000, tmp_path).read()]
    assert pinned == ["nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes"]


class FakeNvml(ModuleType):
    """One GPU that does not report its power limit."""

    class NVMLError(Exception):
        pass

    energy = 5000

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: 1
        self.nvmlDeviceGetHandleByIndex = lambda index: index
        self.nvmlDeviceGetUUID = lambda handle: b"GPU-1"
        self.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=40)
        self.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=100, used=30)
        self.nvmlDeviceGetPowerUsage = lambda handle: 70_500
        self.nvmlDeviceGetTotalEnergyConsumption = lambda handle: self.energy

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        raise self.NVMLError


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    machine = Machine(False, True, 2000)
    nvml.energy = 7500
    label = {"gpu_uuid": "GPU-1"}
    assert values(machine.read(), "nv_gpu", "nv_energy") == {
        "nv_gpu_utilization": [(label, 0.4)],
        "nv_gpu_memory_total_bytes": [(label, 100)],
        "nv_gpu_memory_used_bytes": [(label, 30)],
        "nv_gpu_power_usage": [(label, 70.5)],
        "nv_gpu_power_limit": [],
        "nv_energy_consumption": [(label, 2.5)],
    }
