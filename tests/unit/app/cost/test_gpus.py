"""The use of GPUs, by a driver that is made up: no GPU was at hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cost.gpus import GpuMeter, GpuUse


class Driver:
    """One GPU with two processes, divided by MIG or not."""

    class NVMLError(Exception):
        pass

    def __init__(self, mig: bool) -> None:
        self.mig = mig
        self.asked: list[int] = []

    def nvmlInit(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        process = [SimpleNamespace(pid=7, usedGpuMemory=1000), SimpleNamespace(pid=8, usedGpuMemory=None)]
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "gpu",
            "nvmlDeviceGetName": b"NVIDIA H100",
            "nvmlDeviceGetMigMode": (self.mig, self.mig),
            "nvmlDeviceGetMaxMigDeviceCount": 1,
            "nvmlDeviceGetMigDeviceHandleByIndex": "instance",
            "nvmlDeviceGetAttributes": SimpleNamespace(gpuInstanceSliceCount=3),
            "nvmlDeviceGetComputeRunningProcesses": process,
        }
        return lambda *_: answers[name]

    def nvmlDeviceGetProcessUtilization(self, _: str, since: int) -> list[Any]:
        self.asked.append(since)
        return [SimpleNamespace(pid=7, timeStamp=1 << 60, smUtil=util) for util in (20, 40)]


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    (tmp_path / "nvidia0").touch()
    return tmp_path


def test_shares_and_bytes_of_processes(devices: Path) -> None:
    driver = Driver(mig=False)
    meter = GpuMeter(devices, lambda: driver)
    found = meter.read()
    assert found == {7: GpuUse("NVIDIA H100", found[7].share, 1000), 8: GpuUse("NVIDIA H100", 0.0, 0)}
    assert found[7].share == pytest.approx(0.3)
    meter.read()
    assert driver.asked[1] == 1 << 60, "each sample counts once"


def test_an_instance_of_mig_is_charged_its_slices(devices: Path) -> None:
    found = GpuMeter(devices, lambda: Driver(mig=True)).read()
    assert [use.share for use in found.values()] == [pytest.approx(3 / 14)] * 2


def test_without_a_device_nothing_is_loaded(tmp_path: Path) -> None:
    def load() -> Any:
        raise AssertionError

    assert GpuMeter(tmp_path, load).read() == {}


def test_without_the_package_nothing_is_measured(devices: Path) -> None:
    def load() -> Any:
        raise ImportError("no pynvml")

    assert GpuMeter(devices, load).read() == {}
