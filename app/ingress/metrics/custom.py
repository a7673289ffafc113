"""Custom metrics of Python models: the families of all replicas of this node, combined."""

import logging
from collections.abc import Collection, Iterable, Iterator

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from app.core.observability.latencies import Histogram
from app.core.observability.statistics import CustomFamily, CustomSample
from app.ingress.metrics.exposition import whole
from app.ingress.metrics.family import histogram_samples

logger = logging.getLogger(__name__)

_Key = tuple[tuple[str, str], ...]


def custom_metrics(families: Iterable[CustomFamily], taken: Collection[str]) -> Iterator[Metric]:
    """Combine the families of several processes.

    Args:
        families: the families that each replica reports.
        taken: names of the server's own families. A custom family of such a name is left out, for two would
            make the whole page unreadable; so is one of another kind than the first of its name.
    """
    metrics: dict[str, Metric] = {}
    combined: dict[str, dict[_Key, CustomSample]] = {}
    for name, description, kind, samples in map(msgspec.structs.astuple, families):
        metric = metrics.setdefault(name, Metric(name, description, kind))
        if name in taken or metric.type != kind:
            logger.warning("custom metric family '%s' (%s) is not shown: the name is taken", name, kind)
            continue
        known = combined.setdefault(name, {})
        for sample in samples:
            key = tuple(sorted(sample.labels.items()))
            known[key] = _combined(known[key], sample) if key in known else sample
    for name, found in sorted(combined.items()):
        for key, sample in found.items():
            metrics[name].samples.extend(_samples(name, dict(key), sample))
        yield metrics[name]


def _combined(known: CustomSample, sample: CustomSample) -> CustomSample:
    """Return the sum of two processes' values of the same labels; of a gauge, the value that was set last."""
    if known.set_ns or sample.set_ns:
        return max(known, sample, key=lambda each: each.set_ns)
    if known.bounds != sample.bounds:
        return known
    counts = [a + b for a, b in zip(known.counts, sample.counts, strict=True)]
    return msgspec.structs.replace(known, value=known.value + sample.value, counts=counts)


def _samples(name: str, labels: dict[str, str], sample: CustomSample) -> Iterator[Sample]:
    if sample.counts:
        found = Histogram(tuple(sample.bounds), sample.counts, sample.value)
        yield from histogram_samples(name, labels, found)
    else:
        yield Sample(name, labels, whole(sample.value))
