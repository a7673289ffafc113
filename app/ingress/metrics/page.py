"""`/metrics`: Triton's metric families, from the counters of the replicas on this node.

Only this node's, so that Prometheus may sum over nodes. Text format 0.0.4; written by hand because
prometheus_client appends `_total` to the name of every counter, which Triton's names do not have.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from app.core.identifiers import name_of, namespace_of
from app.core.metrics_config import MetricsConfig
from app.ingress.metrics.batching import batching_lines
from app.ingress.metrics.custom import custom_lines
from app.ingress.metrics.distributions import Rows, histogram_lines, summary_lines
from app.ingress.metrics.labels import Labels
from app.ingress.metrics.machine import Machine
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.replica_statistics import ReplicaStatistics, merge
from app.ingress.service.routed import RoutedInferenceService

_DEFAULTS = MetricsConfig()
_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


class Family(NamedTuple):
    """One metric family; `value` reads it from a version's counters."""

    name: str
    kind: str
    help: str
    value: Callable[[ReplicaStatistics], int]


_FAMILIES = (
    Family(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        lambda s: s.statistics.inference_stats.success.count,
    ),
    Family(
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        lambda s: s.statistics.inference_count,
    ),
    Family(
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        lambda s: s.statistics.execution_count,
    ),
    Family(
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda s: s.statistics.inference_stats.success.ns // 1000,
    ),
    Family(
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda s: s.statistics.inference_stats.queue.ns // 1000,
    ),
    Family(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda s: s.statistics.inference_stats.compute_input.ns // 1000,
    ),
    Family(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda s: s.statistics.inference_stats.compute_infer.ns // 1000,
    ),
    Family(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda s: s.statistics.inference_stats.compute_output.ns // 1000,
    ),
    Family(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda s: s.pending,
    ),
)


_CACHE_FAMILIES = (
    Family(
        "nv_cache_num_hits_per_model",
        "counter",
        "Number of cache hits per model",
        lambda s: s.statistics.inference_stats.cache_hit.count,
    ),
    Family(
        "nv_cache_num_misses_per_model",
        "counter",
        "Number of cache misses per model",
        lambda s: s.statistics.inference_stats.cache_miss.count,
    ),
    Family(
        "nv_cache_hit_duration_per_model",
        "counter",
        "Total cache hit duration per model, in microseconds",
        lambda s: s.statistics.inference_stats.cache_hit.ns // 1000,
    ),
    Family(
        "nv_cache_miss_duration_per_model",
        "counter",
        "Total cache miss duration per model, in microseconds",
        lambda s: s.statistics.inference_stats.cache_miss.ns // 1000,
    ),
)
"""Of models with a response cache; the others have no such lines, as in Triton."""


async def render(
    service: RoutedInferenceService,
    config: MetricsConfig = _DEFAULTS,
    machine: Machine | None = None,
    unsent: SendBufferLimit | None = None,
) -> bytes:
    """The body of `/metrics`.

    Args:
        service: whose replicas are asked.
        config: which kinds of metrics are reported.
        machine: the machine under them.
        unsent: what waits for slow clients in this process.
    """
    entries = service.served()
    parts = await service.replica_statistics(entries, local=True)
    tags = {(e.name, e.version): dict(e.model_config.metric_tags) for e in entries}
    by_key = {(e.name, e.version): e for e in entries}
    rows = [(_labels(*key, tags[key]), merge(part)) for key, part in parts.items()]
    lines: list[str] = []
    for family in _FAMILIES:
        if family.kind != "counter" or config.counters:
            lines += _family(family, rows)
    if config.counters:
        lines += _failures(rows)
        lines += _cache(rows)
    lines += batching_lines(rows)
    lines += _load_durations((_labels(*key, tags[key]), entry.load_seconds) for key, entry in by_key.items())
    if config.summaries:
        lines += summary_lines(rows, config.quantiles)
    if config.histograms:
        lines += histogram_lines(rows)
    lines += _unsent(unsent) if unsent is not None else ()
    for gauge in machine.read() if machine is not None else ():
        lines += _header(gauge.name, gauge.kind, gauge.help)
        lines += (f"{gauge.name}{labels} {value!r}" for labels, value in gauge.samples)
    taken = {line.split(" ")[2] for line in lines if line.startswith("# TYPE ")}
    lines += custom_lines((family for _, stats in rows for family in stats.custom), taken)
    return ("\n".join(lines) + "\n").encode()


def _family(family: Family, rows: Rows) -> list[str]:
    samples = [f"{family.name}{{{labels}}} {family.value(stats)}" for labels, stats in rows]
    return [*_header(family.name, family.kind, family.help), *samples]


def _cache(rows: Rows) -> list[str]:
    cached = [(labels, stats) for labels, stats in rows if stats.cached]
    return [line for family in _CACHE_FAMILIES for line in _family(family, cached)] if cached else []


def _failures(rows: Rows) -> list[str]:
    name = "nv_inference_request_failure"
    lines = _header(name, "counter", "Number of failed inference requests, all batch sizes")
    for labels, stats in rows:
        for reason in _REASONS:
            lines.append(f"{name}{{{labels.also('reason', reason)}}} {stats.failures.get(reason, 0)}")
    return lines


def _unsent(unsent: SendBufferLimit) -> list[str]:
    bytes_name, ended_name = "nereid_unsent_bytes", "nereid_slow_client_ended"
    return [
        *_header(bytes_name, "gauge", "Bytes of answers that wait for slow clients of this ingress replica"),
        f"{bytes_name} {unsent.measure()}",
        *_header(ended_name, "counter", "Connections and streams ended because too much waited for clients"),
        f"{ended_name} {unsent.ended}",
    ]


def _load_durations(rows: Iterable[tuple[Labels, float]]) -> list[str]:
    name = "nv_model_load_duration_secs"
    samples = [f"{name}{{{labels}}} {seconds:g}" for labels, seconds in rows]
    return [*_header(name, "gauge", "Model load time in seconds"), *samples]


def _header(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _labels(model: str, version: int, tags: dict[str, str]) -> Labels:
    # A tag comes from the model's author; a character that no label name may have would spoil the whole page.
    own = {"_" + re.sub(r"[^a-zA-Z0-9_]", "_", key): value for key, value in tags.items()}
    namespace = namespace_of(model)
    place = {"namespace": namespace} if namespace else {}
    return Labels({"model": name_of(model), **place, "version": str(version), **own})
