"""Custom metrics of the program around an in-process server; they are on its page of metrics."""

from collections.abc import Sequence

from backends.python.api import metrics
from nereid.inprocess.errors import triton_errors
from nereid.inprocess.kinds import MetricKind


class MetricFamily:
    """Metrics of one name; they exist as long as they are referenced.

    Args:
        kind: counter, gauge or histogram.
        name: as Prometheus allows it.
        description: their help text.
    """

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        self.kind = kind
        with triton_errors():
            self.family = metrics.MetricFamily(name, description, int(kind))


class Metric:
    """A metric of a family.

    Args:
        family: its family.
        labels: values by name of the label.
        buckets: the upper bounds of a histogram's.
    """

    def __init__(
        self,
        family: MetricFamily,
        labels: dict[str, str] | None = None,
        buckets: Sequence[float] | None = None,
    ) -> None:
        self.kind = family.kind
        self._family = family  # without it a metric is of no use
        with triton_errors():
            self._metric = family.family.Metric(labels, None if buckets is None else list(buckets))

    @property
    def value(self) -> float:
        """The value of a counter or a gauge."""
        with triton_errors():
            return float(self._metric.value())

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge."""
        with triton_errors():
            self._metric.increment(value)

    def set_value(self, value: float) -> None:
        """Set a gauge."""
        with triton_errors():
            self._metric.set(value)

    def observe(self, value: float) -> None:
        """Add a value to a histogram."""
        with triton_errors():
            self._metric.observe(value)
