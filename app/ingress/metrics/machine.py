"""Processors, memory and GPUs of this node, as `/metrics` families."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple


class Gauge(NamedTuple):
    """One family; `samples` are label text and value."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, float]]


class Machine:
    """Reads the machine at most once in `interval_ms`; a scrape in between gets the last reading.

    Args:
        cpu, gpu: what to report.
        interval_ms: `--metrics-interval-ms`.
        proc: where the kernel reports.
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
        self._cpu = cpu
        self._proc = proc
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._gpus = _Gpus.open() if gpu else None
        self._times = self._processor_times() if cpu else (0, 0)
        self._read_at = clock()
        self._utilization = 0.0
        self._last: list[Gauge] = []

    def read(self) -> list[Gauge]:
        """The families that this machine has."""
        now = self._clock()
        if not self._last or now - self._read_at >= self._interval_s:
            self._read_at = now
            self._last = [
                *self._cpu_families(),
                *(self._gpus.families() if self._gpus else ()),
                *_PINNED,
            ]
        return self._last

    def _cpu_families(self) -> Iterator[Gauge]:
        if not self._cpu:
            return
        total, idle = self._processor_times()
        before_total, before_idle = self._times
        if total > before_total:
            self._utilization = 1 - (idle - before_idle) / (total - before_total)
        self._times = total, idle
        memory = self._memory()
        used = memory["MemTotal"] - memory["MemAvailable"]
        yield _one("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", self._utilization)
        yield _one("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory["MemTotal"])
        yield _one("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", used)

    def _processor_times(self) -> tuple[int, int]:
        """Ticks of all processors together, and those of them spent idle (proc(5), `stat`)."""
        line = (self._proc / "stat").read_text().partition("\n")[0]
        ticks = [int(word) for word in line.split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]

    def _memory(self) -> dict[str, int]:
        """Bytes by name (proc(5), `meminfo`)."""
        lines = (self._proc / "meminfo").read_text().splitlines()
        pairs = (line.partition(":") for line in lines)
        return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs}


def _one(name: str, help: str, value: float) -> Gauge:
    return Gauge(name, "gauge", help, [("", value)])


_PINNED: Final = (
    _one("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0),
    _one("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0),
)
"""There is no such pool: dashboards made for Triton find it empty."""


class _Gpus:
    """The GPUs that NVML sees."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._handles = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
        self._energy = {uuid: self._ask("TotalEnergyConsumption", handle) for uuid, handle in self._all()}

    @classmethod
    def open(cls) -> "_Gpus | None":
        """None without a GPU, or without `nvidia-ml-py`."""
        try:
            import pynvml as nvml

            nvml.nvmlInit()
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        except Exception:  # no package, no driver, no device: all mean that there is nothing to report
            return None
        return cls(nvml, handles) if handles else None

    def families(self) -> Iterator[Gauge]:
        """Triton's families of GPUs; a device leaves out what it cannot tell."""
        yield self._family("utilization", "GPU utilization rate [0.0 - 1.0)", "UtilizationRates", _share)
        memory = "GPU {} memory, in bytes"
        yield self._family("memory_total_bytes", memory.format("total"), "MemoryInfo", lambda m: m.total)
        yield self._family("memory_used_bytes", memory.format("used"), "MemoryInfo", lambda m: m.used)
        yield self._family("power_usage", "GPU power usage in watts", "PowerUsage", _thousandth)
        yield self._family(
            "power_limit", "GPU power management limit in watts", "EnforcedPowerLimit", _thousandth
        )
        text = "GPU energy consumption in joules since the Triton Server started"
        joules = [
            (_label(uuid), (now - (self._energy[uuid] or 0)) / 1000)
            for uuid, handle in self._all()
            if (now := self._ask("TotalEnergyConsumption", handle)) is not None
        ]
        yield Gauge("nv_energy_consumption", "counter", text, joules)

    def _family(self, name: str, help: str, question: str, value: Callable[[Any], float]) -> Gauge:
        answers = [(uuid, self._ask(question, handle)) for uuid, handle in self._all()]
        samples = [(_label(uuid), value(answer)) for uuid, answer in answers if answer is not None]
        return Gauge(f"nv_gpu_{name}", "gauge", help, samples)

    def _all(self) -> list[tuple[str, Any]]:
        return list(self._handles.items())

    def _ask(self, question: str, handle: Any) -> Any:
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{question}")(handle)
        except self._nvml.NVMLError:
            return None


def _share(rates: Any) -> float:
    return float(rates.gpu) / 100


def _thousandth(milli: int) -> float:
    return milli / 1000


def _label(uuid: str) -> str:
    return f'{{gpu_uuid="{uuid}"}}'


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
