"""The text of `/metrics`."""

import platform
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from app.core.errors import unavailable
from app.core.installed.installation import server_version
from app.core.observability.latencies import Histogram, Summary
from app.core.observability.metrics_config import MetricsConfig
from app.core.observability.statistics import BatchDurations, CustomFamily, CustomSample
from app.core.residency import ResidencyReport
from app.dispatch.router import Router
from app.ingress.metrics.family import Family
from app.ingress.metrics.ingress_families import (
    BUILD,
    CERTIFICATES,
    FRONTS,
    PROCESS,
    SLOW_CLIENTS,
    FrontReading,
    IngressReading,
)
from app.ingress.metrics.machine import CPU, PINNED, Machine
from app.ingress.metrics.model_families import (
    DISTRIBUTIONS,
    LOAD_FAILURES,
    LOADS,
    REQUESTS,
    ROLLOUT_FAILURES,
    SCALES,
    SERVING,
    STATES,
)
from app.ingress.metrics.page import render
from app.ingress.metrics.residency_families import RESIDENCY, WAITING
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.routed import RoutedInferenceService
from app.routing.scale import Outlook, Scale
from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from tests.unit.app.routing_fakes import (
    CONFIG,
    SETTINGS,
    FakeChannel,
    FakePool,
    FakeRepository,
    FakeRouter,
    counters,
    entry,
)

ENSEMBLE = """
platform: "ensemble"
input { name: "A" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ 1 ] }
ensemble_scheduling { step {
  model_name: "m" model_version: -1
  input_map { key: "INPUT0" value: "A" } output_map { key: "OUTPUT0" value: "B" }
} }
"""
PAGE = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="m",version="1"} 5
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="m",version="1"} 40
# HELP nv_inference_exec_count Number of model executions performed (does not include cached requests)
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="m",version="1"} 3
# HELP nv_inference_request_duration_us Cumulative inference request duration in microseconds (includes cached requests)
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{model="m",version="1"} 5
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds (includes cached requests)
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="m",version="1"} 6
# HELP nv_inference_compute_input_duration_us Cumulative compute input duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{model="m",version="1"} 7
# HELP nv_inference_compute_infer_duration_us Cumulative compute inference duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{model="m",version="1"} 8
# HELP nv_inference_compute_output_duration_us Cumulative inference compute output duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_output_duration_us counter
nv_inference_compute_output_duration_us{model="m",version="1"} 9
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="m",version="1"} 2
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 1
nv_inference_request_failure{model="m",reason="CANCELED",version="1"} 0
nv_inference_request_failure{model="m",reason="BACKEND",version="1"} 4
nv_inference_request_failure{model="m",reason="OTHER",version="1"} 0
# HELP nereid_expected_wait_us Expected wait of a request that arrives now, in microseconds
# TYPE nereid_expected_wait_us gauge
nereid_expected_wait_us{model="m",version="1"} 0
# HELP nereid_replica_restarts Replicas started in place of one that ended unexpectedly, since the version was loaded
# TYPE nereid_replica_restarts counter
nereid_replica_restarts{model="m",version="1"} 7
# HELP nv_model_load_duration_secs Model load time in seconds
# TYPE nv_model_load_duration_secs gauge
nv_model_load_duration_secs{model="m",version="1"} 0
# HELP nereid_model_ready Whether requests to the model version are accepted (1) or not (0)
# TYPE nereid_model_ready gauge
nereid_model_ready{model="m",version="1"} 1
# HELP nereid_replicas_ready Replicas on this node that are ready
# TYPE nereid_replicas_ready gauge
nereid_replicas_ready{model="m",version="1"} 1
# HELP nereid_model_state The state of a model version, as a label (as in the repository index); always 1
# TYPE nereid_model_state gauge
nereid_model_state{model="m",state="READY",version="1"} 1
# HELP nereid_model_load_failure Loads of a model that failed since the repository manager started
# TYPE nereid_model_load_failure counter
# HELP nereid_rollout_failure Rollouts of a model that failed since the repository manager started; none that people aborted
# TYPE nereid_rollout_failure counter
"""  # noqa: E501


async def page(router: FakeRouter) -> str:
    return (await render(service_of(router))).decode()


def service_of(router: FakeRouter) -> RoutedInferenceService:
    return RoutedInferenceService(SETTINGS, cast(Router, router), FakeRepository())


def samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by family and labels, as Prometheus reads them."""
    return {
        family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


async def test_page_of_one_model() -> None:
    router = FakeRouter(entry("m"))
    answer = counters(
        success=5,
        queue=6,
        compute_input=7,
        compute_infer=8,
        compute_output=9,
        inference_count=40,
        execution_count=3,
        pending=2,
        restarts=7,
        failures={"BACKEND": 4, "REJECTED": 1},
    )
    router.pools["m:1"] = FakePool([FakeChannel(answer)], [])
    assert await page(router) == PAGE


async def test_prometheus_reads_every_family(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  1 0 0 1 0 0 0 0 0 0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 2 kB\nMemAvailable: 1 kB\n")
    machine = Machine(True, False, 2000, tmp_path)
    sample = CustomSample({"a": 'b"\\\n'}, 4.0, 0, [1.0, 2.5], [1, 0, 2])
    report = counters(
        cache_miss=1,
        releases={"full": 1},
        refusals={"deadline": 1},
        batches={3: BatchDurations()},
        first_response=Histogram((1.0,), [2, 1], 3.5),
        durations={kind: Histogram((1.0,), [2, 1], 3.5) for kind in ("request", "queue", "compute")},
        summaries={"queue": Summary(2, 10, {5: 1, 9: 1})},
        custom=[CustomFamily("own", "a\nb", "histogram", [sample])],
        processor_s=1.5,
    )
    router = FakeRouter(entry("m", scale=Scale(1, changes={"load": 1}, outlook=Outlook("", 2, 0.1, 0.2))))
    router.pools["m:1"] = FakePool([FakeChannel(report)], [], {"was killed": 1})
    router.table = RoutingTable(
        1, True, router.table.entries, load_failures={"m": 1}, rollout_failures={"m": 2}
    )
    ingress = IngressReading(
        SendBufferLimit(),
        {"http": FrontReading(1, 0)},
        {"http": 1e9},
        residency=ResidencyReport(1, 2, 3, 4, 5, 6, 7, 8.0),
    )
    config = MetricsConfig(summaries=True, histograms=True)
    text = (await render(service_of(router), config, machine, ingress)).decode()
    found = list(text_string_to_metric_families(text))
    tables: tuple[Family[Any], ...]
    tables = (
        *REQUESTS,
        *LOADS,
        *DISTRIBUTIONS,
        *SERVING,
        *STATES,
        *SCALES,
        *LOAD_FAILURES,
        *ROLLOUT_FAILURES,
    )
    tables += (*BUILD, *PROCESS, *SLOW_CLIENTS, *FRONTS, *CERTIFICATES, *WAITING, *RESIDENCY, *CPU, *PINNED)
    # A name by itself says that there are such metrics: as in Triton, it is not there beside a cache.
    tables = tuple(family for family in tables if family.name != "nv_inference_request_summary_us")
    expected = [(family.name.removesuffix("_total"), family.kind, family.help) for family in tables]
    expected.append(("own", "histogram", "a\nb"))
    assert [(family.name, family.type, family.documentation) for family in found] == expected
    assert all(family.samples for family in found)
    assert found[-1].samples[0].labels == {"a": 'b"\\\n', "le": "1"}


async def ingress_page(reading: IngressReading) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    return samples((await render(service_of(FakeRouter()), ingress=reading)).decode())


async def test_versions_are_labels() -> None:
    found = await ingress_page(IngressReading(SendBufferLimit()))
    versions = {"python": platform.python_version(), "ray": ray.__version__, "version": server_version()}
    assert found["nereid_build_info"] == {tuple(versions.items()): 1}


async def test_the_process_is_measured() -> None:
    found = await ingress_page(IngressReading(SendBufferLimit()))
    me = psutil.Process()
    assert found["process_open_fds"][()] == pytest.approx(me.num_fds(), abs=2)
    assert found["process_resident_memory_bytes"][()] == pytest.approx(me.memory_info().rss, rel=0.1)
    assert 0 < found["process_cpu_seconds"][()] <= sum(me.cpu_times()[:2]) + 0.1
    assert found["process_open_fds"][()] < found["process_max_fds"][()]


async def test_connections_and_certificates_are_of_fronts() -> None:
    fronts = {"grpc": FrontReading(3, 0), "http": FrontReading(2, 5)}
    found = await ingress_page(IngressReading(SendBufferLimit(), fronts, {"http": 2e9}))
    grpc, http = (("front", "grpc"),), (("front", "http"),)
    assert found["nereid_connections"] == {grpc: 3, http: 2}
    assert found["nereid_connections_refused"] == {grpc: 0, http: 5}
    assert found["nereid_certificate_expiry_timestamp_seconds"] == {http: 2e9}
    assert "nereid_certificate_expiry_timestamp_seconds" not in await ingress_page(
        IngressReading(SendBufferLimit(), fronts)
    )


async def test_every_version_that_is_wanted_has_a_state() -> None:
    router = FakeRouter(
        entry("m"),
        entry("m", 2, ModelState.LOADING),
        entry("m", 3, ModelState.UNAVAILABLE, reason="unloaded"),
        VersionEntry("n", NO_VERSION, ModelState.UNKNOWN),
    )
    found = samples(await page(router))["nereid_model_state"]
    assert found == {
        (("model", "m"), ("state", "READY"), ("version", "1")): 1,
        (("model", "m"), ("state", "LOADING"), ("version", "2")): 1,
        (("model", "n"), ("state", "UNKNOWN"), ("version", "")): 1,
    }


async def test_replicas_that_a_scaled_version_is_to_have() -> None:
    router = FakeRouter(entry("m", scale=Scale(3, "load", "", {"load": 2, "idle": 1})), entry("n"))
    found = samples(await page(router))
    m, v = ("model", "m"), ("version", "1")
    assert found["nereid_replicas_wanted"] == {(m, v): 3}
    changes = {(m, ("reason", "load"), v): 2, (m, ("reason", "idle"), v): 1}
    assert found["nereid_scaling_changes"] == changes
    assert "nereid_replicas_wanted" not in await page(FakeRouter(entry("n")))


async def test_loads_and_rollouts_that_failed_are_counted_by_model() -> None:
    router, failures = FakeRouter(), {"/a::m": 2, "n": 1}
    router.table = RoutingTable(1, True, namespacing=True, load_failures=failures, rollout_failures=failures)
    found = samples(await page(router))
    for name in ("nereid_model_load_failure", "nereid_rollout_failure"):
        assert found[name] == {(("model", "m"), ("namespace", "/a")): 2, (("model", "n"),): 1}


async def test_scaled_models_have_a_maximum() -> None:
    found = samples(await page(FakeRouter(entry("m"), entry("n", scale=Scale(2, most=8)))))
    assert found["nereid_replicas_maximum"] == {(("model", "n"), ("version", "1")): 8}


async def test_replicas_of_this_node_are_counted_if_ready() -> None:
    router = FakeRouter(entry("m"), entry("e", config=ENSEMBLE))
    here = [FakeChannel(counters()), FakeChannel(counters(), suspected="no answer for 3 s")]
    router.pools["m:1"] = FakePool(here, [FakeChannel(counters())], {"was killed by signal 9 (SIGKILL)": 3})
    found = samples(await page(router))
    labels = (("model", "m"), ("version", "1"))
    assert found["nereid_replicas_ready"] == {(("model", "e"), ("version", "1")): 0, labels: 1}
    (lost,) = found["nereid_replica_lost"].items()
    assert lost == ((labels[0], ("reason", "was killed by signal 9 (SIGKILL)"), labels[1]), 3)


async def test_families_are_declared_without_models() -> None:
    text = await page(FakeRouter())
    assert [line for line in text.splitlines() if not line.startswith("# ")] == []
    assert text.splitlines() == [line for line in PAGE.splitlines() if line.startswith("# ")]


async def test_only_replicas_of_this_node_are_counted() -> None:
    """So that Prometheus may sum over the nodes."""
    router = FakeRouter(entry("m"))
    here, there = FakeChannel(counters(success=2)), FakeChannel(counters(success=40))
    router.pools["m:1"] = FakePool([here, here], [there])
    found = samples(await page(router))
    assert list(found["nv_inference_request_success"].values()) == [4]


async def test_versions_are_listed_in_order() -> None:
    router = FakeRouter(entry("n"), entry("m", 10), entry("m", 2))
    for number, application in enumerate(("m:2", "m:10", "n:1"), 1):
        router.pools[application] = FakePool([FakeChannel(counters(success=number))], [])
    found = samples(await page(router))["nv_inference_request_success"]
    assert found == {
        (("model", "m"), ("version", "2")): 1,
        (("model", "m"), ("version", "10")): 2,
        (("model", "n"), ("version", "1")): 3,
    }


async def test_replica_that_does_not_answer_is_left_out() -> None:
    router = FakeRouter(entry("m"), entry("n"))
    router.pools["m:1"] = FakePool([FakeChannel(unavailable("closed"))], [])
    router.pools["n:1"] = FakePool([FakeChannel(counters(success=1))], [])
    found = samples(await page(router))["nv_inference_request_success"]
    assert list(found.values()) == [0, 1]


async def test_readiness_is_that_after_the_reports() -> None:
    class Stopped(FakeChannel):
        async def control(self, *arguments: Any) -> Any:
            router.out.add("m:1")  # while the page waits for it
            return await super().control(*arguments)

    router = FakeRouter(entry("m"))
    router.pools["m:1"] = FakePool([Stopped(counters())], [])
    assert list(samples(await page(router))["nereid_model_ready"].values()) == [0]


async def test_readiness_is_what_this_ingress_finds() -> None:
    router = FakeRouter(entry("m"), entry("n"))
    router.out.add("n:1")
    assert list(samples(await page(router))["nereid_model_ready"].values()) == [1, 0]


async def test_a_suspected_replica_is_not_asked() -> None:
    router = FakeRouter(entry("m"))
    hung = FakeChannel(AssertionError("it was asked"), suspected="no answer for 3 s")
    router.pools["m:1"] = FakePool([hung], [])
    assert list(samples(await page(router))["nv_inference_request_success"].values()) == [0]


async def test_tags_are_escaped() -> None:
    tags = r"""
    metric_tags { key: "team" value: "a \"b\" \\ c\nd" }
    metric_tags { key: "bad-key\"} 1\n" value: "x" }
    """
    router = FakeRouter(entry('m"x\\', config=CONFIG + tags))
    text = await page(router)
    line = next(line for line in text.splitlines() if line.startswith("nv_inference_count{"))
    assert r'model="m\"x\\",version="1"' in line
    ((labels, _),) = samples(text)["nv_inference_count"].items()
    assert dict(labels) == {
        "model": 'm"x\\',
        "version": "1",
        "_team": 'a "b" \\ c\nd',
        "_bad_key___1_": "x",
    }


async def test_cache_families_are_of_models_that_use_it() -> None:
    router = FakeRouter(entry("m"), entry("n"))
    router.pools["m:1"] = FakePool([FakeChannel(counters(cache_hit=3, cache_miss=2, has_cache=True))], [])
    router.pools["n:1"] = FakePool([FakeChannel(counters(success=1))], [])
    found = samples(await page(router))
    labels = (("model", "m"), ("version", "1"))
    assert found["nv_cache_num_hits_per_model"] == {labels: 3}
    assert found["nv_cache_miss_duration_per_model"] == {labels: 2}


async def test_send_buffers_are_reported() -> None:
    class Client:
        def buffered_bytes(self) -> int:
            return 7

        def evict(self) -> None: ...

    buffers = SendBufferLimit()
    buffers.update(Client())
    text = (await render(service_of(FakeRouter()), ingress=IngressReading(buffers))).decode()
    assert "\nnereid_unsent_bytes 7\n" in text
    assert "\nnereid_slow_client_ended 0\n" in text


async def test_labels_are_sorted_by_name() -> None:
    """Of a page of tritonserver 2.51, with the same tags."""
    tags = "".join(f"metric_tags {{ key: '{key}' value: '{key[0]}' }}" for key in ("zeta", "alpha"))
    router = FakeRouter(entry("m", config=CONFIG + tags))
    router.pools["m:1"] = FakePool([FakeChannel(counters())], [])
    text = await page(router)
    tagged, versioned = '_alpha="a",_zeta="z",model="m",', 'version="1"} 0\n'
    assert f"\nnv_inference_count{{{tagged}{versioned}" in text
    assert f'\nnv_inference_request_failure{{{tagged}reason="OTHER",{versioned}' in text
