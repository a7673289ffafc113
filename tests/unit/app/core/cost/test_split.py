"""What a version consumes, divided among clients, whatever comes first."""

from collections.abc import Iterable

import pytest

from app.core.cost.amounts import Consumption
from app.core.cost.split import FORGET_STEPS, LONG_STEPS, QUIET_STEPS, STALE_STEPS, Share, VersionSplit

PLACE = "node", ""


def cpu(seconds: float) -> Consumption:
    return Consumption(cpu_seconds=seconds)


def seconds(shares: Iterable[Share]) -> dict[str | None, float]:
    return {share.client: share.amount.cpu_seconds for share in shares}


def test_by_weight() -> None:
    split = VersionSplit()
    split.consumed(PLACE, Consumption(2.0, memory_gib_seconds=4.0, energy_joules=None))
    split.answered("a", 3.0)
    split.answered("b", 1.0)
    a, b = split.step()
    assert (a.client, a.amount) == ("a", Consumption(1.5, memory_gib_seconds=3.0, energy_joules=None))
    assert (b.client, b.amount.cpu_seconds) == ("b", 0.5)
    assert list(split.step()) == [] and split.shares == {"a": 0.75, "b": 0.25}


def test_each_node_is_divided_by_the_same_shares() -> None:
    split = VersionSplit()
    split.consumed(("n1", ""), cpu(1.0))
    split.consumed(("n2", "H100"), cpu(3.0))
    split.answered("a", 1.0)
    assert [(share.place, share.amount.cpu_seconds) for share in split.step()] == [
        (("n1", ""), 1.0),
        (("n2", "H100"), 3.0),
    ]


def test_answers_may_come_after_what_they_cost() -> None:
    split = VersionSplit()
    split.consumed(PLACE, cpu(1.0))
    for _ in range(QUIET_STEPS):
        assert list(split.step()) == []
    split.answered("a", 5.0)
    assert seconds(split.step()) == {"a": 1.0}


def test_answers_may_come_before_what_they_cost() -> None:
    split = VersionSplit()
    split.answered("a", 5.0)
    for _ in range(STALE_STEPS):
        assert list(split.step()) == []
    split.consumed(PLACE, cpu(0.01))
    assert seconds(split.step()) == {"a": 0.01}


def test_without_any_answer_it_is_idle() -> None:
    split = VersionSplit()
    split.consumed(PLACE, cpu(1.0))
    found = [seconds(split.step()) for _ in range(QUIET_STEPS + 1)]
    assert found == [{}] * QUIET_STEPS + [{None: 1.0}]


def test_memory_alone_is_idle_at_once() -> None:
    split = VersionSplit()
    split.consumed(PLACE, Consumption(memory_gib_seconds=1.0))
    assert [share.client for share in split.step()] == [None]


def test_a_long_request_is_charged_when_it_is_answered() -> None:
    split = VersionSplit()
    split.in_flight("node", 1)
    for _ in range(10):
        split.consumed(PLACE, cpu(1.0))
        assert list(split.step()) == []
    split.in_flight("node", 0)
    split.answered("a", 1.0)
    assert seconds(split.step()) == {"a": 10.0}


def test_a_request_without_an_end_is_charged_as_the_last_ones_were() -> None:
    split = VersionSplit()
    split.consumed(PLACE, cpu(1.0))
    split.answered("a", 1.0)
    assert seconds(split.step()) == {"a": 1.0}
    split.in_flight("node", 1)
    split.consumed(PLACE, cpu(2.0))
    found = [seconds(split.step()) for _ in range(LONG_STEPS + 1)]
    assert found[-1] == {"a": 2.0} and not any(found[:-1])


def test_rows_of_nobody_named_are_not_idle() -> None:
    split = VersionSplit()
    split.consumed(PLACE, cpu(1.0))
    split.noted(3)
    assert [seconds(split.step()) for _ in range(QUIET_STEPS + 1)][-1] == {"": 1.0}


@pytest.mark.parametrize("answered", [True, False])
def test_nothing_is_left_at_the_end(answered: bool) -> None:
    split = VersionSplit()
    split.consumed(PLACE, cpu(1.0))
    if answered:
        split.answered("a", 1.0)
    assert seconds(split.end()) == {"a" if answered else None: 1.0}


def test_a_version_that_is_gone_is_forgotten() -> None:
    split = VersionSplit()
    split.consumed(PLACE, cpu(1.0))
    for _ in range(FORGET_STEPS + QUIET_STEPS + 2):
        list(split.step())
    assert split.forgotten
