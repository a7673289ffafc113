"""The text format: prometheus_client's own parser reads it back."""

import math

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from app.ingress.metrics.exposition import exposition, number, whole


def test_text_of_a_metric() -> None:
    metric = Metric("f", "a \\ b\nc", "gauge")
    metric.add_sample("f", {"b": 'x"\\\n', "a": ""}, 3)
    metric.add_sample("f", {}, 0.5)
    text = '# HELP f a \\\\ b\\nc\n# TYPE f gauge\nf{b="x\\"\\\\\\n",a=""} 3\nf 0.5\n'
    assert exposition([metric]) == text
    (read,) = text_string_to_metric_families(text)
    assert (read.documentation, read.samples) == (metric.documentation, metric.samples)


def test_counters_keep_their_names() -> None:
    metric = Metric("nv_count", "Count", "counter")
    metric.add_sample("nv_count", {}, 1)
    assert exposition([metric]) == "# HELP nv_count Count\n# TYPE nv_count counter\nnv_count 1\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(5, "5"), (0.0, "0.0"), (0.1, "0.1"), (1e20, "1e+20"), (math.inf, "+Inf"), (math.nan, "NaN")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.0, "3"), (-2.0, "-2"), (0.5, "0.5"), (1e20, "1e+20"), (math.nan, "NaN"), (-math.inf, "-Inf")],
)
def test_whole_numbers_have_no_fraction(value: float, text: str) -> None:
    assert number(whole(value)) == text
