"""Custom metrics of several processes on one page."""

from collections.abc import Collection
from typing import Any, Literal

import pytest

from app.core.observability.statistics import CustomFamily, CustomSample
from app.ingress.metrics.custom import custom_metrics
from app.ingress.metrics.exposition import exposition


def family(name: str, kind: Literal["counter", "gauge", "histogram"], *samples: Any) -> CustomFamily:
    return CustomFamily(name, "what it\nis", kind, [CustomSample(*sample) for sample in samples])


def lines(families: list[CustomFamily], taken: Collection[str] = ()) -> list[str]:
    return exposition(custom_metrics(families, taken)).splitlines()


def test_counters_add_up_and_gauges_are_what_was_set_last() -> None:
    families = [
        family("c", "counter", ({"a": 'x"'}, 1.0, 0, [], []), ({}, 0.5, 0, [], [])),
        family("c", "counter", ({"a": 'x"'}, 2.0, 0, [], [])),
        family("g", "gauge", ({}, 5.0, 20, [], [])),
        family("g", "gauge", ({}, 7.0, 10, [], [])),
        family("up", "gauge", ({}, 5.0, 0, [], [])),
        family("up", "gauge", ({}, -2.0, 0, [], [])),
    ]
    assert lines(families) == [
        "# HELP c what it\\nis",
        "# TYPE c counter",
        'c{a="x\\""} 3',
        "c 0.5",
        "# HELP g what it\\nis",
        "# TYPE g gauge",
        "g 5",
        "# HELP up what it\\nis",
        "# TYPE up gauge",
        "up 3",
    ]


def test_histograms() -> None:
    one = ({"a": "b"}, 4.5, 0, [1.0, 2.5], [1, 0, 2])
    assert lines([family("h", "histogram", one), family("h", "histogram", one)])[2:] == [
        'h_bucket{a="b",le="1"} 2',
        'h_bucket{a="b",le="2.5"} 2',
        'h_bucket{a="b",le="+Inf"} 6',
        'h_sum{a="b"} 9',
        'h_count{a="b"} 6',
    ]


def test_names_that_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    sample: tuple[Any, ...] = ({}, 1.0, 0, [], [])
    families = [family("nv", "counter", sample), family("f", "gauge", sample), family("f", "counter", sample)]
    assert lines(families, {"nv"})[1:] == ["# TYPE f gauge", "f 1"]
    assert [record.args for record in caplog.records] == [("nv", "counter"), ("f", "counter")]


def test_numbers() -> None:
    values = [1e20, float("inf"), float("nan"), 0.1]
    found = [lines([family("f", "gauge", ({}, v, 0, [], []))])[2] for v in values]
    assert found == ["f 1e+20", "f +Inf", "f NaN", "f 0.1"]
