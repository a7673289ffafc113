"""The metric families of costs: the manager's figures of the whole server."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from app.core.cost.reports import CostAnswer, VersionCost, VersionSaving
from app.core.identifiers import name_of, namespace_of
from app.core.observability.metrics_config import MetricsConfig
from app.ingress.metrics.family import Condition, Family, Labels, read_families, value

_ACCOUNTED: Final = Condition[VersionCost]("with `--cost`", lambda _: True)
_KNOWN: Final = Condition[float]("with `--cost`", lambda _: True)

VERSIONS: Final[tuple[Family[VersionCost], ...]] = (
    Family(
        "nereid_cost_cpu_seconds",
        "counter",
        "Processor time that requests to a model version have consumed, in seconds",
        value(lambda version: version.usage_s),
        only=_ACCOUNTED,
    ),
    Family(
        "nereid_cost_idle_cpu_seconds",
        "counter",
        "Processor time of a model version while it had no requests, in seconds",
        value(lambda version: version.idle_s),
        only=_ACCOUNTED,
    ),
)
CLIENTS: Final[tuple[Family[float], ...]] = (
    Family(
        "nereid_cost_token_cpu_seconds",
        "counter",
        "Processor time that requests with a token have consumed, of all models, in seconds",
        value(lambda seconds: seconds),
        only=_KNOWN,
    ),
)
OVERHEAD: Final[tuple[Family[float], ...]] = (
    Family(
        "nereid_cost_overhead_cpu_seconds",
        "counter",
        "Processor time of processes that are no model's, in seconds",
        value(lambda seconds: seconds),
        only=_KNOWN,
    ),
)
MEASURED: Final[tuple[Family[float], ...]] = (
    Family(
        "nereid_cost_measured_cpu_seconds",
        "counter",
        "Processor time of all processes of the server, in seconds",
        value(lambda seconds: seconds),
        only=_KNOWN,
    ),
)


def _bounds(name: str, labels: Labels, saving: VersionSaving) -> Iterator[Sample]:
    for bound in ("low", "value", "high"):
        yield Sample(name, dict(sorted({**labels, "bound": bound}.items())), getattr(saving, bound))


SAVINGS: Final[tuple[Family[VersionSaving], ...]] = (
    Family(
        "nereid_rollout_saving_ratio",
        "gauge",
        "Share of processor time that a version saves beside the one before its rollout, with the bounds of "
        "its 95 % interval",
        _bounds,
        only=Condition[VersionSaving](
            "versions that have taken over by a rollout, after half an hour", lambda _: True
        ),
    ),
)


def cost_families(answer: CostAnswer | None, config: MetricsConfig) -> Iterator[Metric]:
    """Read the families of the manager's last answer; none where there is no account."""
    if answer is None:
        return
    yield from read_families(VERSIONS, [(_labels(each), each) for each in answer.versions], config)
    yield from read_families(CLIENTS, _labelled("token", answer.clients), config)
    yield from read_families(OVERHEAD, _labelled("process", answer.overhead), config)
    yield from read_families(SAVINGS, [(_labels(each), each) for each in answer.savings], config)
    yield from read_families(MEASURED, [({}, answer.measured_s)], config)


def _labels(version: VersionCost | VersionSaving) -> Labels:
    namespace = namespace_of(version.model)
    own = {"namespace": namespace} if namespace else {}
    return {"model": name_of(version.model), **own, "version": str(version.version)}


def _labelled(label: str, sources: Mapping[str, float]) -> list[tuple[Labels, float]]:
    return [({label: name}, seconds) for name, seconds in sources.items()]
