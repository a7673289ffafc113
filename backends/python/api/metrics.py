"""Custom metrics of a Python model: `pb_utils.MetricFamily`, with the texts of Triton's python_backend.

They are stored in the model's process and read by `snapshot`. A family exists as long as the model references
it, and its metrics work no longer than that; families of one name share their metrics, metrics of equal
labels their value.
"""

import re
import threading
import time
import weakref
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from backends.python.api.errors import TritonModelException
from backends.python.api.text import as_text

KINDS: Final = ("counter", "gauge", "histogram")
MAX_METRICS: Final = 4096
"""Limit of the metrics of a family, the families of a model and the buckets of a histogram."""

_COUNTER, _GAUGE, _HISTOGRAM = range(3)
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OPERATIONS: Final = {"Increment": "increment", "Set": "set", "Observe": "observe", "Value": "get"}

_DELETED: Final = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' "
    "object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
)

_lock = threading.Lock()


class _Value:
    """The value of one set of labels; only a histogram has bounds, which may be none, and counts."""

    def __init__(self, labels: dict[str, str], bounds: list[float] | None) -> None:
        self.labels = labels
        self.value = 0.0  # a histogram's sum
        self.set_ns = 0  # time of the last `set`, `time.monotonic_ns`
        self.bounds = bounds or []
        self.counts = [] if bounds is None else [0] * (len(bounds) + 1)


class _Family:
    def __init__(self, name: str, description: str, kind: int) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.values: dict[tuple[tuple[str, str], ...], _Value] = {}


_families: "weakref.WeakValueDictionary[str, _Family]" = weakref.WeakValueDictionary()


class Metric:
    """One metric of a family; made by `MetricFamily.Metric`, and of use as long as the model keeps that."""

    def __init__(self, family: "MetricFamily", value: _Value) -> None:
        self._made_by = weakref.ref(family)
        self._kind = family._family.kind
        self._value = value

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge; a gauge accepts negative values.

        Raises:
            TritonModelException: for a histogram, and for a negative value of a counter.
        """
        self._check("Increment", _COUNTER, _GAUGE)
        if self._kind == _COUNTER and not value >= 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented"
                " monotonically by non-negative values."
            )
        with _lock:
            self._value.value += float(value)

    def set(self, value: float) -> None:
        """Set a gauge.

        Raises:
            TritonModelException: for a metric that is no gauge.
        """
        self._check("Set", _GAUGE)
        with _lock:
            self._value.value = float(value)
            self._value.set_ns = time.monotonic_ns()

    def observe(self, value: float) -> None:
        """Count a value in its bucket of a histogram.

        Raises:
            TritonModelException: for a metric that is no histogram.
        """
        self._check("Observe", _HISTOGRAM)
        with _lock:
            self._value.value += float(value)
            self._value.counts[bisect_left(self._value.bounds, value)] += 1

    def value(self) -> float:
        """Return the value of a counter or gauge in this process.

        Raises:
            TritonModelException: for a histogram.
        """
        self._check("Value", _COUNTER, _GAUGE)
        return self._value.value

    def _check(self, operation: str, *kinds: int) -> None:
        if self._made_by() is None:
            raise TritonModelException(_DELETED)
        if self._kind not in kinds:
            kind = KINDS[self._kind].upper()
            raise TritonModelException(
                f"Failed to {_OPERATIONS[operation]} metric value: TRITONSERVER_METRIC_KIND_{kind} does not"
                f" support {operation}"
            )


class MetricFamily:
    """A family of custom metrics."""

    COUNTER: Final = _COUNTER
    GAUGE: Final = _GAUGE
    HISTOGRAM: Final = _HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        """Create a family, or use the existing one of that name with its description.

        Raises:
            TritonModelException: for an unknown kind, a name that Prometheus does not allow, and one that a
                family of another kind has.
        """
        if kind not in (_COUNTER, _GAUGE, _HISTOGRAM):
            raise TritonModelException("Error when creating MetricFamily: Unknown metric kind")
        if not _NAME.fullmatch(name):
            raise TritonModelException("Error when creating MetricFamily: Invalid metric name")
        with _lock:
            family = _families.get(name)
            if family is None:
                _check_room("MetricFamily", len(_families))
                family = _families[name] = _Family(name, as_text(description), kind)
        if family.kind != kind:
            raise TritonModelException(
                "Error when creating MetricFamily: Family name already exists with different type"
            )
        self._family = family

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """Return the metric of these labels, new or existing; `buckets` are upper bounds of a histogram's.

        Raises:
            TritonModelException: for labels that are not strings, and for buckets that are missing, not
                sorted, or given for another kind.
        """
        bounds = self._bounds(buckets)
        known = _checked_labels(labels)
        key = tuple(sorted(known.items()))
        with _lock:
            values = self._family.values
            if key not in values:
                _check_room("Metric", len(values))
                values[key] = _Value(known, bounds)
            return Metric(self, values[key])

    def _bounds(self, buckets: Sequence[float] | None) -> list[float] | None:
        if self._family.kind != _HISTOGRAM:
            if buckets is not None:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
            return None
        if buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        if not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        bounds = [float(bound) for bound in buckets]
        _check_room("Metric", len(bounds))
        if any(not low < high for low, high in pairwise(bounds)):
            raise TritonModelException(
                "Error when creating Metric: Bucket Boundaries must be strictly sorted"
            )
        return bounds


def snapshot() -> list[Any]:
    """Return every family as plain values.

    A family is [name, description, kind, metrics]; a metric is [labels, value (a histogram's sum), time of
    the last `set` (`time.monotonic_ns`, 0 for never), bounds, counts].
    """
    with _lock:
        return [
            [
                family.name,
                family.description,
                KINDS[family.kind],
                [[v.labels, v.value, v.set_ns, v.bounds, list(v.counts)] for v in family.values.values()],
            ]
            for family in list(_families.values())
        ]


def _checked_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TritonModelException(
                "Error when creating Metric: attempt to access JSON non-string as string"
            )
        if not _LABEL.fullmatch(name):
            raise TritonModelException("Error when creating Metric: Invalid label name")
    return {name: as_text(value) for name, value in labels.items()}


def _check_room(what: str, count: int) -> None:
    if count >= MAX_METRICS:
        raise TritonModelException(f"Error when creating {what}: more than {MAX_METRICS} of them")
