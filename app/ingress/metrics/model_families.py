"""The metric families of models: Triton's, and those on batches that Triton does not have (`nereid_`)."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from prometheus_client.samples import Sample

from app.core.errors import FailureReason
from app.core.observability.latencies import FIRST_RESPONSE, Histogram, Summary
from app.core.observability.statistics import ReplicaReport
from app.ingress.metrics.exposition import whole
from app.ingress.metrics.family import (
    Condition,
    Family,
    Labels,
    Option,
    by_reason,
    gauge,
    histogram,
    summary_samples,
    value,
)
from app.ingress.service.routed import Serving
from app.routing.scale import Scale
from app.routing.table import VersionEntry

_BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ModelReading(NamedTuple):
    """One model version, over the replicas of this node; `quantiles` are those that summaries report."""

    report: ReplicaReport
    quantiles: tuple[float, ...]

    @property
    def has_cache(self) -> bool:
        """Whether a response cache is in use; of an ensemble, its requests show that."""
        return self.report.has_cache or self.report.cache_miss.count > 0


def _failures(reading: ModelReading) -> dict[str, int]:
    return {reason.value: reading.report.failures.get(reason.value, 0) for reason in FailureReason}


def _batch_sizes(reading: ModelReading) -> Histogram:
    counts = [0] * (len(_BATCH_SIZES) + 1)
    rows = 0
    for size, durations in reading.report.batches.items():
        counts[bisect_left(_BATCH_SIZES, size)] += durations.compute_infer.count
        rows += size * durations.compute_infer.count
    return Histogram(_BATCH_SIZES, counts, rows)


def _counter(
    name: str,
    help: str,
    read: Callable[[ModelReading], int],
    only: Condition[ModelReading] | None = None,
) -> Family[ModelReading]:
    return Family(name, "counter", help, value(read), _COUNTERS, only)


def _summary(
    name: str, help: str, duration: str, only: Condition[ModelReading] | None = None
) -> Family[ModelReading]:
    def samples(name: str, labels: Labels, reading: ModelReading) -> Iterator[Sample]:
        found = reading.report.summaries.get(duration, Summary())
        yield from summary_samples(name, labels, found, reading.quantiles)

    return Family(name, "summary", help, samples, _SUMMARIES, only)


def _seconds(kind: str, help: str) -> Family[ModelReading]:
    """Make one of the histograms that are always kept; their bounds are the same everywhere."""

    def read(reading: ModelReading) -> Histogram | None:
        return reading.report.durations.get(kind)

    return Family(f"nereid_{kind}_duration_seconds", "histogram", help, histogram(read), only=_ANSWERED)


def _first_response(reading: ModelReading) -> Histogram | None:
    """Return the histogram with its sum in whole milliseconds, as Triton writes it."""
    found = reading.report.first_response
    return found and Histogram(found.bounds, found.counts, math.floor(found.total))


def _state(name: str, labels: Labels, source: VersionEntry) -> Iterator[Sample]:
    yield Sample(name, dict(sorted({**labels, "state": source.state.value}.items())), 1)


_COUNTERS: Final = Option("counter_latencies=true", attrgetter("counters"))
_SUMMARIES: Final = Option("summary_latencies=true", attrgetter("summaries"))
_HISTOGRAMS: Final = Option("histogram_latencies=true", attrgetter("histograms"))
_UNCACHED: Final = Condition[ModelReading]("models without a response cache", lambda each: not each.has_cache)
"""As in Triton, a model with a response cache has summaries of hits and misses instead of requests."""
_CACHED: Final = Condition[ModelReading]("models with a response cache", attrgetter("has_cache"))
_BATCHED: Final = Condition[ModelReading](
    "models with a dynamic batcher, from the first batch", lambda m: bool(m.report.releases)
)
_ANSWERED: Final = Condition[ModelReading]("from the first success", lambda m: bool(m.report.durations))
_LOSING: Final = Condition[Serving]("from the first loss", lambda serving: bool(serving.losses))
_OVERLOADED: Final = Condition[ModelReading](
    "models that refused a request because of the wait", lambda m: bool(m.report.refusals)
)

_MEASURED: Final = Condition[ModelReading](
    "models with processes of their own", lambda m: bool(m.report.processor_s)
)
_SCALED: Final = Condition[Scale]("models with `max_replicas`", lambda scale: True)
_FORECAST: Final = Condition[Scale](
    "models with `max_replicas`, after a day", lambda scale: scale.outlook.replicas is not None
)

REQUESTS: Final[tuple[Family[ModelReading], ...]] = (
    _counter(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda m: m.report.success.count,
    ),
    _counter(
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda m: m.report.inference_count,
    ),
    _counter(
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda m: m.report.execution_count,
    ),
    _counter(
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda m: m.report.success.ns // 1000,
    ),
    _counter(
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda m: m.report.queue.ns // 1000,
    ),
    _counter(
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda m: m.report.compute_input.ns // 1000,
    ),
    _counter(
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda m: m.report.compute_infer.ns // 1000,
    ),
    _counter(
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda m: m.report.compute_output.ns // 1000,
    ),
    Family(
        "nereid_model_processor_seconds",
        "counter",
        "Processor time of the processes of a model version in seconds, also while it is idle",
        value(lambda m: m.report.processor_s),
        _COUNTERS,
        _MEASURED,
    ),
    gauge(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda m: m.report.pending,
    ),
    Family(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        by_reason(_failures),
        _COUNTERS,
    ),
    _counter(
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        lambda m: m.report.cache_hit.count,
        _CACHED,
    ),
    _counter(
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        lambda m: m.report.cache_miss.count,
        _CACHED,
    ),
    _counter(
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda m: m.report.cache_hit.ns // 1000,
        _CACHED,
    ),
    _counter(
        "nv_cache_miss_duration_per_model",
        "Total cache miss duration per model, in microseconds",
        lambda m: m.report.cache_miss.ns // 1000,
        _CACHED,
    ),
    _counter(
        "nereid_cache_failures",
        "Number of lookups and insertions of the response cache that failed",
        lambda m: m.report.cache_failures,
        _CACHED,
    ),
    Family(
        "nereid_batch_size",
        "histogram",
        "Batch items of a model execution",
        histogram(_batch_sizes),
        only=_BATCHED,
    ),
    Family(
        "nereid_batch_release",
        "counter",
        "Batches by why the scheduler released them",
        by_reason(lambda m: dict(sorted(m.report.releases.items()))),
        only=_BATCHED,
    ),
    gauge(
        "nereid_queue_age_us",
        "Age of the oldest queued request in microseconds",
        lambda m: m.report.queue_age_ns // 1000,
        only=_BATCHED,
    ),
    gauge(
        "nereid_expected_wait_us",
        "Expected wait of a request that arrives now, in microseconds",
        lambda m: m.report.expected_wait_ns // 1000,
    ),
    Family(
        "nereid_replica_restarts",
        "counter",
        "Replicas started in place of one that ended unexpectedly, since the version was loaded",
        value(lambda m: m.report.restarts),
    ),
    Family(
        "nereid_request_refusal",
        "counter",
        "Requests that an overloaded model refused, by what limited their wait",
        by_reason(lambda m: dict(sorted(m.report.refusals.items()))),
        only=_OVERLOADED,
    ),
)

LOADS: Final[tuple[Family[VersionEntry], ...]] = (
    gauge(
        "nv_model_load_duration_secs",
        "Model load time in seconds",
        lambda entry: whole(float(f"{entry.load_seconds:g}")),
    ),
)

STATES: Final[tuple[Family[VersionEntry], ...]] = (
    Family(
        "nereid_model_state",
        "gauge",
        "The state of a model version, as a label (as in the repository index); always 1",
        _state,
    ),
)

SCALES: Final[tuple[Family[Scale], ...]] = (
    gauge(
        "nereid_replicas_wanted",
        "Replicas on all nodes that a scaled model version is to have (the same at every ingress)",
        lambda scale: scale.wanted,
        only=_SCALED,
    ),
    gauge(
        "nereid_replicas_maximum",
        "Replicas on all nodes that a scaled model version may have, its `max_replicas`",
        lambda scale: scale.most,
        only=_SCALED,
    ),
    gauge(
        "nereid_forecast_replicas",
        "Replicas that the load of earlier days lets expect to be needed soon (the same at every ingress)",
        lambda scale: scale.outlook.replicas,
        only=_FORECAST,
    ),
    gauge(
        "nereid_forecast_error",
        "Mean error of such forecasts in three days, as a share of the mean load",
        lambda scale: scale.outlook.error,
        only=_FORECAST,
    ),
    gauge(
        "nereid_forecast_last_value_error",
        "The same error of expecting that the load does not change",
        lambda scale: scale.outlook.last_value_error,
        only=_FORECAST,
    ),
    Family(
        "nereid_scaling_changes",
        "counter",
        "Changes of that number since the repository manager started, by reason (the same at every ingress)",
        by_reason(lambda scale: dict(sorted(scale.changes.items()))),
        only=_SCALED,
    ),
)

LOAD_FAILURES: Final[tuple[Family[int], ...]] = (
    Family(
        "nereid_model_load_failure",
        "counter",
        "Loads of a model that failed since the repository manager started",
        value(lambda count: count),
    ),
)
ROLLOUT_FAILURES: Final[tuple[Family[int], ...]] = (
    Family(
        "nereid_rollout_failure",
        "counter",
        "Rollouts of a model that failed since the repository manager started; none that people aborted",
        value(lambda count: count),
    ),
)

SERVING: Final[tuple[Family[Serving], ...]] = (
    gauge(
        "nereid_model_ready",
        "Whether requests to the model version are accepted (1) or not (0)",
        lambda serving: int(serving.available),
    ),
    gauge("nereid_replicas_ready", "Replicas on this node that are ready", lambda serving: serving.replicas),
    Family(
        "nereid_replica_lost",
        "counter",
        "Replicas on any node that this ingress replica lost, by how they ended",
        by_reason(lambda serving: serving.losses),
        only=_LOSING,
    ),
)

DISTRIBUTIONS: Final[tuple[Family[ModelReading], ...]] = (
    _seconds("request", "Duration of successful requests, in seconds (includes cached requests)"),
    _seconds("queue", "Duration of successful requests in the queue, in seconds"),
    _seconds("compute", "Duration of successful requests from the queue to the last response, in seconds"),
    _summary(
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
        "request",
        _UNCACHED,
    ),
    _summary(
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        "queue",
    ),
    _summary(
        "nv_inference_compute_input_summary_us",
        "Summary of compute input duration in microseconds (does not include cached requests)",
        "compute_input",
    ),
    _summary(
        "nv_inference_compute_infer_summary_us",
        "Summary of compute inference duration in microseconds (does not include cached requests)",
        "compute_infer",
    ),
    _summary(
        "nv_inference_compute_output_summary_us",
        "Summary of inference compute output duration in microseconds (does not include cached requests)",
        "compute_output",
    ),
    _summary(
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit durations per model, in microseconds",
        "cache_hit",
        _CACHED,
    ),
    _summary(
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss durations per model, in microseconds",
        "cache_miss",
        _CACHED,
    ),
    Family(
        FIRST_RESPONSE,
        "histogram",
        "Duration from request to first response in milliseconds",
        histogram(_first_response),
        _HISTOGRAMS,
    ),
)
