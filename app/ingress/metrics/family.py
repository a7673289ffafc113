"""Metric families as rows of tables, and the samples that they make of their sources."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Generic, NamedTuple, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from app.core.observability.latencies import Histogram, Summary
from app.core.observability.metrics_config import MetricsConfig
from app.ingress.metrics.exposition import number, whole

S = TypeVar("S")
Labels = Mapping[str, str]
Samples = Callable[[str, Labels, S], Iterable[Sample]]
"""Returns the samples of one source, given the name of the family and the labels of the source."""


class Option(NamedTuple):
    """The `--metrics-config` setting that families depend on."""

    setting: str
    enabled: Callable[[MetricsConfig], bool]


ALWAYS: Final = Option("", lambda _: True)


class Condition(NamedTuple, Generic[S]):
    """Which sources a family is reported for."""

    text: str
    holds: Callable[[S], bool]


class Family(NamedTuple, Generic[S]):
    """One metric family.

    A family with a condition is left out when no source meets it; others have HELP and TYPE lines even then.
    """

    name: str
    kind: str
    help: str
    samples: Samples[S]
    option: Option = ALWAYS
    only: Condition[S] | None = None


def read_families(
    families: Iterable[Family[S]], sources: Sequence[tuple[Labels, S]], config: MetricsConfig
) -> Iterator[Metric]:
    """Read every enabled family from every source.

    Args:
        families: a table of families.
        sources: what the families are read from, each with the labels of its samples.
        config: which kinds of metrics are reported.
    """
    for family in families:
        only = family.only
        shown = [source for source in sources if only is None or only.holds(source[1])]
        if family.option.enabled(config) and (shown or only is None):
            metric = Metric(family.name, family.help, family.kind)
            for labels, source in shown:
                metric.samples.extend(family.samples(family.name, labels, source))
            yield metric


def gauge(
    name: str, help: str, read: Callable[[S], float | None], only: Condition[S] | None = None
) -> Family[S]:
    """Make a gauge of one sample for each source, or none where the value is unknown."""
    return Family(name, "gauge", help, value(read), only=only)


def value(read: Callable[[S], float | None]) -> Samples[S]:
    """Make one sample, or none where the value is unknown."""

    def samples(name: str, labels: Labels, source: S) -> Iterator[Sample]:
        found = read(source)
        if found is not None:
            yield Sample(name, dict(labels), found)

    return samples


def by_reason(read: Callable[[S], Mapping[str, int]]) -> Samples[S]:
    """Make a sample for each reason."""

    def samples(name: str, labels: Labels, source: S) -> Iterator[Sample]:
        for reason, count in read(source).items():
            yield Sample(name, dict(sorted({**labels, "reason": reason}.items())), count)

    return samples


def histogram(read: Callable[[S], Histogram | None]) -> Samples[S]:
    """Make the samples of a histogram, or none where it is not kept."""

    def samples(name: str, labels: Labels, source: S) -> Iterator[Sample]:
        found = read(source)
        if found is not None:
            yield from histogram_samples(name, labels, found)

    return samples


def histogram_samples(name: str, labels: Labels, found: Histogram) -> Iterator[Sample]:
    """Return the samples of a histogram; `le` is the last label."""
    bounds = [*(number(whole(bound)) for bound in found.bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(found.counts), strict=True):
        yield Sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield Sample(f"{name}_sum", dict(labels), whole(found.total))
    yield Sample(f"{name}_count", dict(labels), sum(found.counts))


def summary_samples(
    name: str, labels: Labels, found: Summary, quantiles: Iterable[float]
) -> Iterator[Sample]:
    """Return the samples of a summary, in whole microseconds; `quantile` is the last label."""
    for share in quantiles:
        us = found.quantile(share)
        yield Sample(name, {**labels, "quantile": f"{share:g}"}, us if math.isnan(us) else round(us))
    yield Sample(f"{name}_sum", dict(labels), found.us)
    yield Sample(f"{name}_count", dict(labels), found.count)
