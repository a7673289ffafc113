"""Objectives, and what keeps them."""

import math

import pytest

from nereid_client.tools.perf import slo
from nereid_client.tools.perf.generator.job import End
from nereid_client.tools.perf.options import PerfError
from nereid_client.tools.perf.slo import Rule, read_rules
from tests.unit.client.tools.perf.rows import result, rows


def test_rules_are_read() -> None:
    assert read_rules("p99<20ms,errors<0.1%") == (Rule("p99", 20), Rule("errors", 0.001))
    assert read_rules("mean < 500us, max<=1.5s,avg<3") == (
        *(Rule("mean", 0.5), Rule("max", 1500), Rule("mean", 3)),
        Rule("errors", 0.001),
    )
    assert slo.percentiles(read_rules("p99.5<1ms,mean<1ms")) == [99.5]


@pytest.mark.parametrize(
    "text", ["", "p99", "p99>3ms", "errors<3ms", "p99<3%", "latency<3ms", "p99<3ms;p50<1ms"]
)
def test_rules_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(PerfError, match="--slo"):
        read_rules(text)


def test_broken_rule_is_named() -> None:
    rules = read_rules("p99<20ms,errors<1%")
    assert slo.broken(rules, result([5] * 100)) == ""
    assert slo.broken(rules, result([5] * 90 + [30] * 10)) == "p99 30.00 ms"
    assert slo.broken(rules, result([1] * 10, records=rows([1] * 10, end=End.REFUSED))) == "errors 100.00%"
    assert slo.broken(read_rules("p50<900ms"), result([5 * i for i in range(100)])) == "67/s of 100/s"


def test_excess_is_the_worst_of_the_figures_as_a_share_of_its_limit() -> None:
    rules = read_rules("p99<20ms,errors<1%")
    assert slo.excess(rules, result([5] * 100)) == pytest.approx(math.log(5 / 20))
    assert slo.excess(rules, result([5] * 90 + [30] * 10)) == pytest.approx(math.log(30 / 20))
    assert slo.excess(read_rules("p50<900ms"), result([5 * i for i in range(100)])) == math.inf
    assert slo.excess(read_rules("errors<1%"), result([5] * 100)) == -math.inf
