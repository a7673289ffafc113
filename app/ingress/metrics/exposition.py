"""The Prometheus text format, version 0.0.4.

prometheus_client's own writer appends `_total` to the names of counters, which Triton's names do not have.
"""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

from prometheus_client.metrics_core import Metric


def exposition(metrics: Iterable[Metric]) -> str:
    """Write metric families and their samples; labels keep their order."""
    lines: list[str] = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {_escape(metric.documentation)}")
        lines.append(f"# TYPE {metric.name} {metric.type}")
        lines += (f"{one.name}{_labels(one.labels)} {number(one.value)}" for one in metric.samples)
    return "".join(f"{line}\n" for line in lines)


def number(value: float) -> str:
    """Write the value of a sample or of an `le` label."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def whole(value: float) -> float:
    """Return a float without a fraction as an integer, which is written without ".0"."""
    return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else value


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join([_label(name, value) for name, value in labels.items()])
    return f"{{{pairs}}}" if pairs else ""


@lru_cache(4096)  # each label of a histogram is on seventeen lines
def _label(name: str, value: str) -> str:
    escaped = _escape(value).replace('"', r"\"")
    return f'{name}="{escaped}"'


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
