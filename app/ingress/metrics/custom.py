"""Custom metrics of Python models: the families of all replicas of this node as one."""

import logging
import math
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One metric of one process.

    `value` is the sum of a histogram, whose upper bounds and counts (of those above too) follow. `set_ns` is
    when a gauge was set last, 0 for never.
    """

    labels: dict[str, str]
    value: float
    set_ns: int
    bounds: list[float]
    counts: list[int]


class _Family:
    def __init__(self, description: str, kind: str) -> None:
        self.description = description
        self.kind = kind
        self.samples: dict[Labels, Sample] = {}

    def add(self, sample: Sample) -> None:
        """Add up what several processes say of the same labels; of a gauge, what was set last."""
        key = tuple(sorted(sample.labels.items()))
        known = self.samples.get(key)
        if known is None:
            self.samples[key] = sample
        elif known.set_ns or sample.set_ns:
            self.samples[key] = max(known, sample, key=lambda each: each.set_ns)
        elif known.bounds == sample.bounds:
            counts = [a + b for a, b in zip(known.counts, sample.counts, strict=True)]
            self.samples[key] = known._replace(value=known.value + sample.value, counts=counts)


def custom_lines(families: Iterable[Any], taken: Collection[str]) -> Iterator[str]:
    """The lines of `/metrics`.

    Args:
        families: what `backends.python.api.metrics.snapshot` says in each replica.
        taken: names that the server's own families have; a custom one of such a name is left out, for two
            would make the whole page unreadable. So is one of another kind than the first of its name.
    """
    merged: dict[str, _Family] = {}
    for name, description, kind, samples in families:
        family = merged.setdefault(name, _Family(description, kind))
        if name in taken or family.kind != kind:
            logger.warning("custom metric family '%s' (%s) is not shown: the name is taken", name, kind)
            continue
        for sample in samples:
            family.add(Sample(*sample))
    for name, family in sorted(merged.items()):
        if name in taken:
            continue
        yield f"# HELP {name} {escape(family.description, quotes=False)}"
        yield f"# TYPE {name} {family.kind}"
        for labels, sample in family.samples.items():
            yield from _histogram(name, labels, sample) if sample.bounds else _plain(name, labels, sample)


def _plain(name: str, labels: Labels, sample: Sample) -> Iterator[str]:
    yield f"{name}{_braced(labels)} {_number(sample.value)}"


def _histogram(name: str, labels: Labels, sample: Sample) -> Iterator[str]:
    bounds = [*map(_number, sample.bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(sample.counts), strict=True):
        yield f"{name}_bucket{_braced((*labels, ('le', bound)))} {count}"
    yield f"{name}_sum{_braced(labels)} {_number(sample.value)}"
    yield f"{name}_count{_braced(labels)} {sum(sample.counts)}"


def _number(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _braced(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{escape(value)}"' for name, value in labels)
    return f"{{{pairs}}}" if pairs else ""


def escape(text: str, quotes: bool = True) -> str:
    """A label's value, or without `quotes` a HELP text, as the text format wants it."""
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text
