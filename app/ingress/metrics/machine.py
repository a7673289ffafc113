"""Processors, memory and GPUs of this node, as metric families."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

from prometheus_client.metrics_core import Metric

from app.core.observability.metrics_config import MetricsConfig
from app.ingress.metrics.family import Family, gauge, read_families, value


class CpuReading(NamedTuple):
    """The processors, 0 to 1, and the memory in bytes."""

    utilization: float
    memory_total: int
    memory_used: int


class GpuReading(NamedTuple):
    """One GPU: share of the time, bytes, watts, joules since the start; None where it does not report one."""

    uuid: str
    utilization: float | None
    memory_total: int | None
    memory_used: int | None
    power_usage: float | None
    power_limit: float | None
    energy: float | None


CPU: Final[tuple[Family[CpuReading], ...]] = (
    gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", lambda cpu: cpu.utilization),
    gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", lambda cpu: cpu.memory_total),
    gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", lambda cpu: cpu.memory_used),
)

GPU: Final[tuple[Family[GpuReading], ...]] = (
    gauge("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", lambda gpu: gpu.utilization),
    gauge("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", lambda gpu: gpu.memory_total),
    gauge("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", lambda gpu: gpu.memory_used),
    gauge("nv_gpu_power_usage", "GPU power usage in watts", lambda gpu: gpu.power_usage),
    gauge("nv_gpu_power_limit", "GPU power management limit in watts", lambda gpu: gpu.power_limit),
    Family(
        "nv_energy_consumption",
        "counter",
        "GPU energy consumption in joules since the Triton Server started",
        value(lambda gpu: gpu.energy),
    ),
)

PINNED: Final[tuple[Family[None], ...]] = (
    gauge("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", lambda _: 0),
    gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", lambda _: 0),
)
"""There is no such pool: dashboards made for Triton find it empty."""

_ALL: Final = MetricsConfig()


class Machine:
    """Reads the machine at most once in `interval_ms`; a scrape in between gets the last reading.

    Args:
        cpu, gpu: what to report.
        interval_ms: `--metrics-interval-ms`.
        proc: the kernel's process file system.
        clock: seconds.
    """

    def __init__(
        self,
        cpu: bool,
        gpu: bool,
        interval_ms: float,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._cpu = _Cpu(proc) if cpu else None
        self._gpus = _Gpus.open() if gpu else None
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._read_at = clock()
        self._last: list[Metric] = []

    def read(self) -> list[Metric]:
        """Return the families that this machine has."""
        now = self._clock()
        if not self._last or now - self._read_at >= self._interval_s:
            self._read_at = now
            self._last = list(self._metrics())
        return self._last

    def _metrics(self) -> Iterator[Metric]:
        if self._cpu is not None:
            yield from read_families(CPU, [({}, self._cpu.read())], _ALL)
        if self._gpus is not None:
            readings = [({"gpu_uuid": gpu.uuid}, gpu) for gpu in self._gpus.read()]
            yield from read_families(GPU, readings, _ALL)
        yield from read_families(PINNED, [({}, None)], _ALL)


def plain(metrics: Iterable[Metric]) -> dict[str, list[dict[str, Any]]]:
    """Return metrics as plain values: labels and `value` of each sample, by the metric's name."""
    return {
        metric.name: [{**sample.labels, "value": sample.value} for sample in metric.samples]
        for metric in metrics
    }


class _Cpu:
    """The processors and the memory, as proc(5) shows them."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._ticks = self._processor_ticks()
        self._utilization = 0.0

    def read(self) -> CpuReading:
        """Return the utilization since the last call, and the memory now."""
        total, idle = self._processor_ticks()
        before_total, before_idle = self._ticks
        if total > before_total:
            self._utilization = 1 - (idle - before_idle) / (total - before_total)
        self._ticks = total, idle
        memory = self._memory()
        return CpuReading(self._utilization, memory["MemTotal"], memory["MemTotal"] - memory["MemAvailable"])

    def _processor_ticks(self) -> tuple[int, int]:
        """Return the ticks of all processors together, and those of them spent idle (`stat`)."""
        line = (self._proc / "stat").read_text().partition("\n")[0]
        ticks = [int(word) for word in line.split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]

    def _memory(self) -> dict[str, int]:
        """Return bytes by name (`meminfo`)."""
        lines = (self._proc / "meminfo").read_text().splitlines()
        pairs = (line.partition(":") for line in lines)
        return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs}


class _Gpus:
    """The GPUs that NVML sees."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._handles = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
        self._first_energy = {
            uuid: self._ask("TotalEnergyConsumption", handle) or 0 for uuid, handle in self._handles.items()
        }

    @classmethod
    def open(cls) -> "_Gpus | None":
        """Return the GPUs; None without any, or without `nvidia-ml-py`."""
        try:
            import pynvml as nvml

            nvml.nvmlInit()
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        except Exception:  # no package, no driver, no device: all mean that there is nothing to report
            return None
        return cls(nvml, handles) if handles else None

    def read(self) -> list[GpuReading]:
        """Ask every device."""
        return [self._read(uuid, handle) for uuid, handle in self._handles.items()]

    def _read(self, uuid: str, handle: Any) -> GpuReading:
        rates = self._ask("UtilizationRates", handle)
        memory = self._ask("MemoryInfo", handle)
        energy = self._ask("TotalEnergyConsumption", handle)
        return GpuReading(
            uuid,
            None if rates is None else float(rates.gpu) / 100,
            None if memory is None else memory.total,
            None if memory is None else memory.used,
            _thousandth(self._ask("PowerUsage", handle)),
            _thousandth(self._ask("EnforcedPowerLimit", handle)),
            None if energy is None else (energy - self._first_energy[uuid]) / 1000,
        )

    def _ask(self, question: str, handle: Any) -> Any:
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{question}")(handle)
        except self._nvml.NVMLError:
            return None


def _thousandth(milli: int | None) -> float | None:
    return None if milli is None else milli / 1000


def _text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text
