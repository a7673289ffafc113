"""Objectives and the search for the rate that keeps them."""

from itertools import chain, repeat

import pytest

from app.tools.perf import slo
from app.tools.perf.generator.job import End
from app.tools.perf.options import PerfError
from app.tools.perf.slo import Rule, read_rules
from tests.unit.app.tools.perf.rows import result, rows


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


@pytest.mark.parametrize("first", [1, 100, 380, 5000])
@pytest.mark.parametrize("capacity", [7.0, 400.0])
def test_search_finds_the_rate_up_to_its_precision(first: float, capacity: float) -> None:
    found = slo.search(lambda rate: rate <= capacity, first)
    assert capacity / 1.05 <= found.rate <= capacity
    assert len(found.tried) < 25
    assert found.tried[-3:] == ((found.rate, True),) * 3


def test_search_goes_back_from_a_rate_that_is_not_confirmed() -> None:
    asked = 0

    def keeps(rate: float) -> bool:
        nonlocal asked
        asked += 1
        return rate <= (400 if asked < 8 else 350)  # it was luck

    found = slo.search(keeps, 100)
    assert 330 < found.rate <= 350


@pytest.mark.parametrize("paused", range(1, 14))
def test_search_does_not_take_one_pause_for_a_limit(paused: int) -> None:
    asked = 0

    def keeps(rate: float) -> bool:
        nonlocal asked
        asked += 1
        return rate <= 400 and asked != paused

    assert slo.search(keeps, 100).rate > 400 / 1.05


def test_search_ends_where_no_rate_is_kept() -> None:
    found = slo.search(lambda rate: False, 100)
    assert found.rate == 0 and len(dict(found.tried)) < 12
    answers = chain([True, True, False], repeat(False))
    assert slo.search(lambda rate: next(answers), 100).rate == 0  # nothing is confirmed
