"""Custom metrics of Python models, where the model is."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from backends.python.api import metrics
from backends.python.api.metrics import MetricFamily, snapshot
from backends.python.api.pb_utils import TritonModelException
from tests.unit.python_models import Load, execute, row

COUNTER, GAUGE, HISTOGRAM = MetricFamily.COUNTER, MetricFamily.GAUGE, MetricFamily.HISTOGRAM


@pytest.fixture(autouse=True)
def none_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_families", weakref.WeakValueDictionary())


def test_counter_and_gauge() -> None:
    counts, measures = MetricFamily("c", "counts", COUNTER), MetricFamily("g", "measures", GAUGE)
    counter = counts.Metric(labels={"a": "1"})
    counter.increment(2)
    counter.increment(0.5)
    gauge = measures.Metric()
    gauge.set(5)
    gauge.increment(-7)
    assert (counter.value(), gauge.value()) == (2.5, -2)
    (c, g) = sorted(snapshot())
    assert c == ["c", "counts", "counter", [[{"a": "1"}, 2.5, 0, [], []]]]
    assert g[2] == "gauge" and g[3][0][2] > 0


def test_a_histogram_without_buckets_counts_all() -> None:
    family = MetricFamily("h", "", HISTOGRAM)
    metric = family.Metric(buckets=[])
    metric.observe(7)
    ((_, _, _, ((_, total, _, bounds, counts),)),) = snapshot()
    assert (total, bounds, counts) == (7.0, [], [1])


def test_histogram() -> None:
    family = MetricFamily("h", "spreads", HISTOGRAM)
    metric = family.Metric(labels={}, buckets=[1, 2.5])
    for value in (0.5, 1, 2, 9):
        metric.observe(value)
    assert snapshot() == [["h", "spreads", "histogram", [[{}, 12.5, 0, [1, 2.5], [2, 1, 1]]]]]


def test_family_exists_while_it_is_referenced() -> None:
    first, second = MetricFamily("f", "first", COUNTER), MetricFamily("f", "second", COUNTER)
    metric, same = first.Metric({"a": "b"}), second.Metric({"a": "b"})
    metric.increment(1)
    assert same.value() == 1
    del first
    gc.collect()
    assert [family[1] for family in snapshot()] == ["first"]
    del second
    gc.collect()
    assert snapshot() == []
    for use in (metric.value, partial(same.increment, 1)):
        with pytest.raises(TritonModelException, match="Invalid metric operation as the corresponding"):
            use()


def counter() -> Any:
    kept = MetricFamily("c", "", COUNTER)
    made: Any = kept.Metric()
    made.kept = kept
    return made


def histogram() -> Any:
    kept = MetricFamily("h", "", HISTOGRAM)
    made: Any = kept.Metric(buckets=[1])
    made.kept = kept
    return made


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda: MetricFamily("c", "", 3), "Error when creating MetricFamily: Unknown metric kind"),
        (lambda: MetricFamily("1 c", "", COUNTER), "Error when creating MetricFamily: Invalid metric name"),
        (
            lambda: (MetricFamily("c", "", COUNTER), MetricFamily("c", "", GAUGE)),
            "Error when creating MetricFamily: Family name already exists with different type",
        ),
        (
            lambda: MetricFamily("c", "", COUNTER).Metric({"a": 1}),  # type: ignore[dict-item]
            "Error when creating Metric: attempt to access JSON non-string as string",
        ),
        (
            lambda: MetricFamily("c", "", COUNTER).Metric({"a b": "1"}),
            "Error when creating Metric: Invalid label name",
        ),
        (
            lambda: MetricFamily("c", "", COUNTER).Metric(["a"]),  # type: ignore[arg-type]
            "Failed to create metric. Labels must be a dictionary.",
        ),
        (
            lambda: MetricFamily("c", "", COUNTER).Metric(buckets=[1]),
            "Failed to create metric. Unexpected buckets found.",
        ),
        (
            lambda: MetricFamily("h", "", HISTOGRAM).Metric(),
            "Failed to create metric. Missing required buckets.",
        ),
        (
            lambda: MetricFamily("h", "", HISTOGRAM).Metric(buckets=(1,)),
            "Failed to create metric. Buckets must be a list.",
        ),
        (
            lambda: MetricFamily("h", "", HISTOGRAM).Metric(buckets=[2, 1]),
            "Error when creating Metric: Bucket Boundaries must be strictly sorted",
        ),
        (
            lambda: counter().increment(-1),
            "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented"
            " monotonically by non-negative values.",
        ),
        (
            lambda: counter().set(1),
            "Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Set",
        ),
        (
            lambda: counter().observe(1),
            "Failed to observe metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Observe",
        ),
        (
            lambda: histogram().value(),
            "Failed to get metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value",
        ),
    ],
)
def test_invalid_metrics_are_refused(do: Callable[[], Any], message: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        do()
    assert str(caught.value) == message


def test_number_of_metrics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_METRICS", 2)
    family = MetricFamily("c", "", COUNTER)
    assert family.Metric({"a": "1"}) and family.Metric({"a": "2"}) and family.Metric({"a": "1"})
    with pytest.raises(TritonModelException, match="more than 2 of them"):
        family.Metric({"a": "3"})


def test_metrics_end_with_the_model(load: Load) -> None:
    source = execute("self.c.increment(1)\nreturn [pb_utils.InferenceResponse([])]") + (
        "    def initialize(self, args):\n"
        "        self.family = pb_utils.MetricFamily('mine', '', pb_utils.MetricFamily.COUNTER)\n"
        "        self.c = self.family.Metric()\n"
    )
    served = load(source)
    served(row(1))
    assert served.backend.metrics() == [["mine", "", "counter", [[{}, 1.0, 0, [], []]]]]
    served.close()
    gc.collect()
    assert served.backend.metrics() == []
