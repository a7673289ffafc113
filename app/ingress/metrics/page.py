"""`/metrics`: the counters of this node's replicas, in the Prometheus text format.

Only this node's, so that Prometheus may sum over nodes.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from prometheus_client.metrics_core import Metric

from app.core.identifiers import name_of, namespace_of
from app.core.observability.metrics_config import MetricsConfig
from app.core.observability.statistics import CustomFamily
from app.ingress.metrics.custom import custom_metrics
from app.ingress.metrics.exposition import exposition
from app.ingress.metrics.family import Labels, read_families
from app.ingress.metrics.ingress_families import IngressReading, ingress_families
from app.ingress.metrics.machine import Machine
from app.ingress.metrics.model_families import (
    DISTRIBUTIONS,
    LOAD_FAILURES,
    LOADS,
    REQUESTS,
    ROLLOUT_FAILURES,
    SCALES,
    SERVING,
    STATES,
    ModelReading,
)
from app.ingress.metrics.rollout_families import ROLLOUTS, SideReading, side_readings
from app.ingress.metrics.tape_families import FEEDBACK, SCORES, by_model, scored
from app.ingress.service.routed import RoutedInferenceService
from app.rollout.traffic import RolloutTraffic
from app.routing.table import NO_VERSION, RoutingTable, VersionEntry

_DEFAULTS: Final = MetricsConfig()


async def render(
    service: RoutedInferenceService,
    config: MetricsConfig = _DEFAULTS,
    machine: Machine | None = None,
    ingress: IngressReading | None = None,
    custom: Iterable[CustomFamily] = (),
) -> bytes:
    """Return the body of `/metrics`.

    Args:
        service: the service whose replicas are asked.
        config: which kinds of metrics are reported.
        machine: the machine of this node, None to leave it out.
        ingress: this process, None to leave it out.
        custom: custom metrics that no replica reports.
    """
    entries = _counted(service)
    reports = await service.reports(entries, local=True)
    # Read last: a replica that is stopped has kept the others' reports waiting for seconds.
    serving = [(_labels(entry), service.serving(entry)) for entry in _counted(service)]
    feedback = {} if service.keeper is None else await service.keeper.reading()
    models = [(_labels(entry), ModelReading(report, config.quantiles)) for entry, report in reports]
    families = chain(
        read_families(REQUESTS, models, config),
        read_families(LOADS, [(_labels(entry), entry) for entry in entries], config),
        read_families(DISTRIBUTIONS, models, config),
        read_families(SERVING, serving, config),
        read_families(STATES, [(_labels(entry), entry) for entry in service.known()], config),
        read_families(SCALES, [(_labels(e), e.scale) for e in entries if e.scale is not None], config),
        _failures(service.table, config),
        read_families(ROLLOUTS, _sides(service.rollouts), config),
        read_families(FEEDBACK, by_model(feedback), config),
        read_families(SCORES, [*scored(feedback)], config),
        () if ingress is None else ingress_families(ingress, config),
        () if machine is None else machine.read(),
    )
    reported = chain(custom, (family for _, report in reports for family in report.custom))
    return await _written(families, lambda taken: custom_metrics(reported, taken))


def own_families(
    service: RoutedInferenceService, ingress: IngressReading, config: MetricsConfig = _DEFAULTS
) -> Iterator[Metric]:
    """Read the families that need no replica: of this process, and what the manager has told it."""
    yield from _failures(service.table, config)
    yield from read_families(ROLLOUTS, _sides(service.rollouts), config)
    yield from ingress_families(ingress, config)


def _counted(service: RoutedInferenceService) -> list[VersionEntry]:
    """Return the versions that are served but for idle ones, which have no counters and may be thousands."""
    return [entry for entry in service.served() if entry.application or entry.ensemble]


async def _written(
    families: Iterable[Metric], custom: Callable[[Collection[str]], Iterable[Metric]]
) -> bytes:
    """Write families, then custom ones, which have to know the names that are taken.

    Requests are served between two families: many models make thousands of lines.
    """
    parts, names = [], set()
    for metric in families:
        parts.append(exposition([metric]))
        names.add(metric.name)
        await asyncio.sleep(0)
    parts.append(exposition(custom(names)))
    return "".join(parts).encode(errors="backslashreplace")


def _failures(table: RoutingTable, config: MetricsConfig) -> Iterator[Metric]:
    yield from read_families(LOAD_FAILURES, _by_name(table.load_failures), config)
    yield from read_families(ROLLOUT_FAILURES, _by_name(table.rollout_failures), config)


def _by_name(counts: Mapping[str, int]) -> list[tuple[Labels, int]]:
    """Label the counts of models, which are by identifier."""
    return [({"model": name_of(key), **_namespace(key)}, count) for key, count in sorted(counts.items())]


def _sides(rollouts: RolloutTraffic) -> list[tuple[Labels, SideReading]]:
    """Label the two versions of each rollout that is on."""
    return [
        (dict(sorted({"model": name_of(split.name), **_namespace(split.name), **own}.items())), side)
        for split, outcomes in rollouts.counted()
        for own, side in side_readings(split, outcomes)
    ]


def _namespace(identifier: str) -> Labels:
    namespace = namespace_of(identifier)
    return {"namespace": namespace} if namespace else {}


def _labels(entry: VersionEntry) -> Labels:
    """Return the labels of a model version, sorted by name as tritonserver's (prometheus-cpp keeps a map)."""
    version = "" if entry.version == NO_VERSION else str(entry.version)
    labels = {"model": entry.model, "version": version, **_namespace(entry.name)}
    for key, text in entry.model_config.metric_tags.items():
        # A tag comes from the model's author; a character that no label name may have would break the page.
        labels["_" + re.sub(r"[^a-zA-Z0-9_]", "_", key)] = text
    return dict(sorted(labels.items()))
