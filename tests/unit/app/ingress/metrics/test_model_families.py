"""The families of models on the page, as Prometheus reads it."""

from typing import cast

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from app.core.observability.latencies import Histogram, Summary, SummaryRecorder
from app.core.observability.metrics_config import MetricsConfig
from app.core.observability.statistics import BatchDurations, Duration, ReplicaReport
from app.dispatch.router import Router
from app.ingress.metrics.page import render
from app.ingress.service.routed import RoutedInferenceService
from tests.unit.app.routing_fakes import (
    SETTINGS,
    FakeChannel,
    FakePool,
    FakeRepository,
    FakeRouter,
    counters,
    entry,
)


async def page(config: MetricsConfig, *reports: ReplicaReport) -> dict[str, Metric]:
    """Read the page of a server whose model `m` has these replicas."""
    router = FakeRouter(entry("m"))
    router.pools["m:1"] = FakePool([FakeChannel(report) for report in reports], [])
    service = RoutedInferenceService(SETTINGS, cast(Router, router), FakeRepository())
    text = (await render(service, config)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def summary(*us: int) -> Summary:
    recorder = SummaryRecorder()
    for each in us:
        recorder.record(each * 1000)
    return recorder.report()


def executed(releases: dict[str, int], age_ns: int, **batches: int) -> ReplicaReport:
    """`b4=2`: two executions of 4 rows."""
    by_rows = {int(rows[1:]): BatchDurations(compute_infer=Duration(n)) for rows, n in batches.items()}
    return ReplicaReport(releases=releases, batches=by_rows, queue_age_ns=age_ns)


async def test_batching_families_appear_with_the_first_batch() -> None:
    found = await page(MetricsConfig(), counters(success=1))
    assert not {"nereid_batch_size", "nereid_batch_release", "nereid_queue_age_us"} & set(found)


async def test_batching_families_cover_all_replicas() -> None:
    found = await page(
        MetricsConfig(),
        executed({"full": 2, "idle": 1}, 5000, b1=1, b3=2),
        executed({"full": 3}, 7000, b3=1, b300=2),
    )
    sizes = {(s.name, s.labels.get("le")): s.value for s in found["nereid_batch_size"].samples}
    name = "nereid_batch_size"
    assert [sizes[f"{name}_bucket", str(bound)] for bound in (1, 2, 4, 256)] == [1, 1, 4, 4]
    assert sizes[f"{name}_bucket", "+Inf"] == sizes[f"{name}_count", None] == 6
    assert sizes[f"{name}_sum", None] == 1 + 9 + 600
    releases = {s.labels["reason"]: s.value for s in found["nereid_batch_release"].samples}
    assert releases == {"full": 5, "idle": 1}
    assert list(found["nereid_batch_release"].samples[0].labels) == ["model", "reason", "version"]
    assert found["nereid_queue_age_us"].samples[0].value == 7


async def test_summaries_of_a_model_with_a_response_cache() -> None:
    """Hits and misses, and none of requests; the names are there before the first request."""
    config = MetricsConfig(summaries=True, quantiles=(0.5,))
    known = {"cache_hit": summary(4), "queue": summary(5)}
    found = await page(config, counters(has_cache=True, summaries=known))
    assert {s.name for s in found["nv_cache_hit_summary_per_model"].samples} == {
        "nv_cache_hit_summary_per_model",
        "nv_cache_hit_summary_per_model_sum",
        "nv_cache_hit_summary_per_model_count",
    }
    assert [s.value for s in found["nv_cache_miss_summary_per_model"].samples if s.name[-3:] == "unt"] == [0]
    assert "nv_inference_request_summary_us" not in found
    assert found["nv_inference_queue_summary_us"].samples[-1].value == 1
    assert found["nv_cache_num_hits_per_model"].samples[0].value == 0


async def test_summaries_add_up_over_replicas() -> None:
    reports = [counters(success=1, summaries={"request": summary(us, us)}) for us in (100, 300)]
    config = MetricsConfig(summaries=True, quantiles=(0.5, 0.99))
    found = (await page(config, *reports))["nv_inference_request_summary_us"]
    values = {(s.name, s.labels.get("quantile")): s.value for s in found.samples}
    name = "nv_inference_request_summary_us"
    assert values[(name, "0.5")] == pytest.approx(100, rel=0.02)
    assert values[(name, "0.99")] == pytest.approx(300, rel=0.02)
    assert (values[(f"{name}_sum", None)], values[(f"{name}_count", None)]) == (800, 4)


async def test_histograms_add_up_over_replicas() -> None:
    reports = []
    for ms in (50.0, 700.0):
        histogram = Histogram((100.0, 500.0), [0, 0, 0])
        histogram.observe(ms)
        reports.append(counters(success=1, first_response=histogram))
    found = await page(MetricsConfig(histograms=True), *reports)
    samples = found["nv_inference_first_response_histogram_ms"].samples
    assert [s.value for s in samples if "le" in s.labels] == [1, 1, 2]
    assert [s.value for s in samples if s.name.endswith("_sum")] == [750]


async def test_histogram_keeps_the_whole_milliseconds_of_its_sum_and_all_digits_of_its_bounds() -> None:
    """With six digits the sum would stand still between responses, and close bounds would be the same."""
    histogram = Histogram((1234567.0, 1234568.0), [1, 0, 0], 1234567.25)
    found = await page(MetricsConfig(histograms=True), counters(first_response=histogram))
    samples = found["nv_inference_first_response_histogram_ms"].samples
    assert [s.labels["le"] for s in samples if "le" in s.labels] == ["1234567", "1234568", "+Inf"]
    assert [s.value for s in samples if s.name.endswith("_sum")] == [1234567]


async def test_without_counters_there_are_gauges() -> None:
    found = await page(MetricsConfig(counters=False), counters(success=1))
    assert set(found) == {
        "nv_inference_pending_request_count",
        "nereid_expected_wait_us",
        "nv_model_load_duration_secs",
        "nereid_model_load_failure",
        "nereid_model_ready",
        "nereid_model_state",
        "nereid_replica_restarts",
        "nereid_replicas_ready",
        "nereid_rollout_failure",
    }
