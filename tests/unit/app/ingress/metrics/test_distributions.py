"""Summaries, histograms and the machine on the `/metrics` page, as Prometheus reads it."""

import math
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.core.latencies import Histogram, Summary
from app.core.metrics_config import MetricsConfig, parse_metrics_config
from app.ingress.metrics.distributions import quantile
from app.ingress.metrics.machine import Machine
from app.ingress.metrics.page import render
from app.ingress.service.routed import RoutedInferenceService
from app.routing.router import Router
from tests.unit.app.routing_fakes import (
    SETTINGS,
    FakeChannel,
    FakePool,
    FakeRepository,
    FakeRouter,
    counters,
    entry,
)


async def page(config: MetricsConfig, machine: Machine | None = None, *answers: dict) -> dict:
    router = FakeRouter(entry("m"))
    router.pools["m:1"] = FakePool([FakeChannel(answer) for answer in answers], [])
    service = RoutedInferenceService(SETTINGS, cast(Router, router), FakeRepository())
    text = (await render(service, config, machine)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def summary(*us: int) -> Summary:
    made = Summary()
    for each in us:
        made.add(each * 1000)
    return made


def test_quantiles_are_near() -> None:
    numbers = [int(random.Random(i).expovariate(1 / 5000)) + 1 for i in range(5000)]
    _, _, sizes = summary(*numbers).message()
    for share in (0.5, 0.9, 0.99, 0.999):
        exact = sorted(numbers)[math.ceil(share * len(numbers)) - 1]
        assert quantile(sizes, share) == pytest.approx(exact, rel=0.015, abs=1)
    assert math.isnan(quantile({}, 0.5))
    assert quantile(summary(0, 0).message()[2], 0.9) == 0


async def test_summaries_of_a_model_with_a_response_cache() -> None:
    """Hits and misses, and none of requests; the names are there before the first request."""
    config = MetricsConfig(summaries=True, quantiles=(0.5,))
    known = {"cache_hit": summary(4).message(), "queue": summary(5).message()}
    found = await page(config, None, {**counters(), "cached": True, "summaries": known})
    assert {s.name for s in found["nv_cache_hit_summary_per_model"].samples} == {
        "nv_cache_hit_summary_per_model",
        "nv_cache_hit_summary_per_model_sum",
        "nv_cache_hit_summary_per_model_count",
    }
    assert [s.value for s in found["nv_cache_miss_summary_per_model"].samples if s.name[-3:] == "unt"] == [0]
    assert found["nv_inference_request_summary_us"].samples == []
    assert found["nv_inference_queue_summary_us"].samples[-1].value == 1
    assert found["nv_cache_num_hits_per_model"].samples[0].value == 0


def test_quantiles_forget_and_sums_do_not() -> None:
    now = [0.0]
    made = Summary(lambda: now[0])
    made.add(5_000_000)
    now[0] = 61.0
    assert sum(made.message()[2].values()) == 1
    now[0] = 200.0
    assert made.message() == (1, 5000, {})


async def test_summaries_add_up_over_replicas() -> None:
    answers = []
    for us in (100, 300):
        answer = counters(success=1)
        answer["summaries"] = {"request": summary(us, us).message()}
        answers.append(answer)
    config = MetricsConfig(summaries=True, quantiles=(0.5, 0.99))
    found = (await page(config, None, *answers))["nv_inference_request_summary_us"]
    values = {(s.name, s.labels.get("quantile")): s.value for s in found.samples}
    name = "nv_inference_request_summary_us"
    assert values[(name, "0.5")] == pytest.approx(100, rel=0.02)
    assert values[(name, "0.99")] == pytest.approx(300, rel=0.02)
    assert (values[(f"{name}_sum", None)], values[(f"{name}_count", None)]) == (800, 4)


async def test_histograms_add_up_over_replicas() -> None:
    answers = []
    for ms in (50, 700):
        histogram = Histogram((100.0, 500.0))
        histogram.add(ms * 1_000_000)
        answers.append({**counters(success=1), "first_response": histogram.message()})
    found = await page(MetricsConfig(histograms=True), None, *answers)
    samples = found["nv_inference_first_response_histogram_ms"].samples
    assert [s.value for s in samples if "le" in s.labels] == [1, 1, 2]
    assert [s.value for s in samples if s.name.endswith("_sum")] == [750]


async def test_without_counters_there_are_gauges() -> None:
    found = await page(MetricsConfig(counters=False), None, counters(success=1))
    assert set(found) == {"nv_inference_pending_request_count", "nv_model_load_duration_secs"}


async def test_machine(tmp_path: Path) -> None:
    def ticks(busy: int, idle: int) -> None:
        (tmp_path / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n")

    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\nHuge: 0\n")
    ticks(100, 100)
    now = [0.0]
    machine = Machine(True, False, 2000, tmp_path, lambda: now[0])
    ticks(130, 110)
    found = await page(MetricsConfig(), machine)
    values = {name: family.samples[0].value for name, family in found.items() if "cpu" in name}
    assert values == {
        "nv_cpu_utilization": pytest.approx(0.75),
        "nv_cpu_memory_total_bytes": 1_024_000,
        "nv_cpu_memory_used_bytes": 614_400,
    }
    ticks(230, 110)
    now[0] = 1.0
    assert machine.read()[0].samples == [("", 0.75)]
    now[0] = 2.5
    assert machine.read()[0].samples == [("", 1.0)]
    pinned = [gauge.name for gauge in Machine(False, False, 2000, tmp_path).read()]
    assert pinned == ["nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes"]


class FakeNvml(ModuleType):
    """One GPU; it does not tell its power limit."""

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


async def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    machine = Machine(False, True, 2000)
    nvml.energy = 7500
    found = await page(MetricsConfig(), machine)
    families = {name: family for name, family in found.items() if name.startswith(("nv_gpu", "nv_energy"))}
    values = {name: [(s.labels, s.value) for s in family.samples] for name, family in families.items()}
    label = {"gpu_uuid": "GPU-1"}
    assert values == {
        "nv_gpu_utilization": [(label, 0.4)],
        "nv_gpu_memory_total_bytes": [(label, 100)],
        "nv_gpu_memory_used_bytes": [(label, 30)],
        "nv_gpu_power_usage": [(label, 70.5)],
        "nv_gpu_power_limit": [],
        "nv_energy_consumption": [(label, 2.5)],
    }


def test_metrics_config() -> None:
    assert parse_metrics_config({}) == MetricsConfig()
    given = {"summary_latencies": "true", "counter_latencies": "false", "summary_quantiles": "0.2:0.1"}
    assert parse_metrics_config(given) == MetricsConfig(False, True, False, (0.2,))
    assert parse_metrics_config({"summary_quantiles": "0.1:0.0.1,.75:1e-2"}).quantiles == (0.1, 0.75)
    for wrong in ({"summary_latencies": "maybe"}, {"summary_quantiles": "2:1"}, {"summary_quantiles": "x"}):
        with pytest.raises(ValueError, match="--metrics-config"):
            parse_metrics_config(wrong)
