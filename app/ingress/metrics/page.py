"""`/metrics`: the counters of this node's replicas, in the Prometheus text format.

Only this node's, so that Prometheus may sum over nodes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from app.access.grants import Outcomes
from app.core.identifiers import namespace_of
from app.core.installation import server_version
from app.core.observability.metrics_config import MetricsConfig
from app.ingress.metrics.custom import custom_metrics
from app.ingress.metrics.exposition import exposition
from app.ingress.metrics.family import Family, Labels, gauge, read_families, value
from app.ingress.metrics.machine import Machine
from app.ingress.metrics.model_families import DISTRIBUTIONS, LOADS, REQUESTS, ModelReading
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.routed import RoutedInferenceService
from app.routing.table import VersionEntry

_DEFAULTS: Final = MetricsConfig()


def _by_outcome(name: str, labels: Labels, source: Outcomes) -> Iterator[Sample]:
    """Make a sample for each outcome."""
    for outcome, count in msgspec.structs.asdict(source).items():
        yield Sample(name, {"outcome": outcome, **labels}, count)


SLOW_CLIENTS: Final[tuple[Family[SendBufferLimit], ...]] = (
    gauge(
        "nereid_unsent_bytes",
        "Response bytes buffered for slow clients of this ingress replica",
        lambda limit: limit.measure(),
    ),
    Family(
        "nereid_slow_client_ended",
        "counter",
        "Connections and streams closed because the limit on buffered response bytes was reached",
        value(lambda limit: limit.evicted),
    ),
    Family(
        "nereid_slow_client_timeouts",
        "counter",
        "Connections and calls ended because their clients read responses below the minimum rate",
        value(lambda limit: limit.too_slow),
    ),
)
BUILD: Final[tuple[Family[None], ...]] = (
    gauge("nereid_build_info", "The version of this server, as a label; always 1", lambda _: 1),
)
READINESS: Final[tuple[Family[bool], ...]] = (
    gauge("nereid_model_ready", "Whether requests to the model version are accepted (1) or not (0)", int),
)


CALLERS: Final[tuple[Family[Outcomes], ...]] = (
    Family(
        "nereid_token_requests",
        "counter",
        "Requests of a token by outcome: ok, denied, limited; of this ingress replica",
        _by_outcome,
    ),
)


async def render(
    service: RoutedInferenceService,
    config: MetricsConfig = _DEFAULTS,
    machine: Machine | None = None,
    send_buffers: SendBufferLimit | None = None,
    tokens: Mapping[str, Outcomes] | None = None,
) -> bytes:
    """Return the body of `/metrics`.

    Args:
        service: the service whose replicas are asked.
        config: which kinds of metrics are reported.
        machine: the machine of this node, None to leave it out.
        send_buffers: the send buffers of this process, None to leave what is of the process out.
        tokens: outcomes by name of token, None to leave them out.
    """
    entries = service.served()
    reports = await service.reports(entries, local=True)
    models = [(_labels(entry), ModelReading(report, config.quantiles)) for entry, report in reports]
    metrics: list[Metric] = [
        *read_families(REQUESTS, models, config),
        *read_families(LOADS, [(_labels(entry), entry) for entry in entries], config),
        *read_families(DISTRIBUTIONS, models, config),
        *read_families(READINESS, [(_labels(e), service.available(e)) for e in entries], config),
    ]
    if send_buffers is not None:
        metrics += read_families(BUILD, [({"version": server_version()}, None)], config)
        metrics += read_families(SLOW_CLIENTS, [({}, send_buffers)], config)
    if tokens is not None:
        metrics += read_families(
            CALLERS, [({"token": name}, found) for name, found in tokens.items()], config
        )
    if machine is not None:
        metrics += machine.read()
    custom = (family for _, report in reports for family in report.custom)
    metrics += custom_metrics(custom, {metric.name for metric in metrics})
    return exposition(metrics).encode()


def _labels(entry: VersionEntry) -> Labels:
    """Return the labels of a model version, sorted by name as tritonserver's (prometheus-cpp keeps a map)."""
    labels = {"model": entry.model, "version": str(entry.version)}
    if namespace := namespace_of(entry.name):
        labels["namespace"] = namespace
    for key, text in entry.model_config.metric_tags.items():
        # A tag comes from the model's author; a character that no label name may have would break the page.
        labels["_" + re.sub(r"[^a-zA-Z0-9_]", "_", key)] = text
    return dict(sorted(labels.items()))
