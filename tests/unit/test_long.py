"""What the long suites judge by."""

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.long.cost_rate import TURN_NS, in_turns, interval
from tests.long.outcomes import NO_ANSWER, Ledger, Refusal
from tests.long.plants import PLANTS, with_fault
from tests.long.processes import Growth, Reading, Snapshot, growth
from tests.long.rollout_models import CANDIDATES, Candidate, Model
from tests.long.rollouts import Row
from tests.long.soak import CONTROL, RISE_MIB, left_over, too_much
from tests.server import ROOT


def noisy(rise: float, jump: float = 0.0) -> list[tuple[float, float]]:
    """A hundred points of MiB over 990 s: waves, a jump on the way, and a steady rise in all."""
    return [(10.0 * n, 90 + math.sin(n) + jump * (n > 90) + rise * n / 99) for n in range(100)]


@pytest.mark.parametrize("rise", [0.0, 4.0, 30.0])
@pytest.mark.parametrize("jump", [0.0, 20.0])
def test_growth_is_what_goes_on(rise: float, jump: float) -> None:
    found = growth("replica", 1, noisy(rise, jump))
    assert found.rise == pytest.approx(rise, abs=1.5)
    assert found.per_hour == pytest.approx(rise / 990 * 3600, abs=6)


def grown(role: str, rise: float) -> Growth:
    return Growth(role, 1, 600, 90, 90 + rise, rise)


def test_the_control_has_to_grow_and_nothing_else() -> None:
    leak, quiet = grown(CONTROL, RISE_MIB + 1), grown("replica nereid:ingress", RISE_MIB - 1)
    assert list(too_much([leak, quiet])) == []
    assert len(list(too_much([leak, grown("gcs", RISE_MIB + 1)]))) == 1
    assert len(list(too_much([grown(CONTROL, 0), quiet]))) == 1
    assert len(list(too_much([quiet]))) == 1


def test_what_is_left_over() -> None:
    before = Snapshot({1: Reading("ingress", 90, 120, 40, 20)}, {})
    assert (
        list(
            left_over(
                before, Snapshot({1: Reading("ingress", 91, 121, 41, 21), 2: before.readings[1]}, {7: 0})
            )
        )
        == []
    )
    assert len(list(left_over(before, Snapshot({1: Reading("ingress", 90, 120, 90, 50)}, {7: 0.5})))) == 3


def test_what_a_client_tries_again() -> None:
    assert Refusal("503", "anything").transient
    assert Refusal(NO_ANSWER, "ConnectionResetError()").transient
    assert Refusal("", "model 'm': connection to its replica lost: closed").transient
    assert Refusal("", "model 'm' has no available versions: version 1 is loading").transient
    assert Refusal("", "model 'm' is not found: models are loading").transient
    assert not Refusal("", "client reads responses too slowly: send buffer limit exceeded").transient
    assert not Refusal("500", "is not at ready state").transient
    assert not Refusal("400", "").transient


def test_the_ledger_counts_requests_and_not_tries() -> None:
    ledger = Ledger()
    for _ in range(998):
        ledger.was_retried(Refusal("503", "busy"))
        ledger.came_right("a", 0.1)
    ledger.was_retried(Refusal("400", "row 17"))
    ledger.came_right("b", 0.1)
    ledger.has_failed("a", "late")
    assert (ledger.total, ledger.success) == (1000, 0.999)
    text = "\n".join(ledger.lines())
    assert "998 times after 503: busy" in text and "400: row #" in text and "FAILED" in text


def test_a_wrong_answer_is_kept_however_many_other_failures_there_were() -> None:
    ledger = Ledger()
    for _ in range(1000):
        ledger.has_failed("a", "refused")
    ledger.has_failed("b", "another's answer", wrong=True)
    assert len(ledger.failures) < 1000
    assert [line.split(" ", 1)[1] for line in ledger.wrong] == ["b: another's answer"]
    assert "another's answer" in "\n".join(ledger.lines())


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_fits_into_the_product(name: str) -> None:
    for change in PLANTS[name]:
        compile(with_fault(change, (ROOT / change.path).read_text()), name, "exec")


@pytest.mark.parametrize("candidate", CANDIDATES.values(), ids=CANDIDATES)
def test_candidates_are_python(candidate: Candidate, tmp_path: Path) -> None:
    Model("m", "grpc").write(tmp_path, 2, candidate)
    compile((tmp_path / "m" / "2" / "model.py").read_text(), "model.py", "exec")


@pytest.mark.parametrize(
    ("name", "state", "seconds", "errors", "wrong", "faults"),
    [
        ("raises", "failed", 19, 0, 0, 0),
        ("raises", "step", 19, 0, 0, 1),
        ("raises", "failed", 21, 0, 0, 1),
        ("raises", "failed", 19, 1, 0, 1),
        ("raises", "failed", 19, 0, 1, 1),
        ("hangs, clients see it", "failed", 19, 1, 0, 0),
        ("good", "done", 19, 0, 0, 0),
        ("good", "done", 19, 0, 1, 1),
        ("good", "failed", 19, 0, 0, 1),
    ],
)
def test_a_rollout_has_to_end_as_it_should_and_clients_see_nothing_of_it(
    name: str, state: str, seconds: float, errors: int, wrong: int, faults: int
) -> None:
    row = Row(name, "http", state, seconds, "", errors, wrong, 1.0, 1.0, "", {})
    assert len(row.faults) == faults


def test_the_turns_that_a_server_takes_are_those_that_are_told_apart() -> None:
    source = next(change.added for change in PLANTS["costs-in-turns"])
    ended = list[int]()
    loop = SimpleNamespace(call_at=Mock())
    names: dict[str, Any] = {"asyncio": SimpleNamespace(get_running_loop=lambda: loop)}
    exec(source, names)
    entry = SimpleNamespace(target="counted", route="plain")
    turns = names["CostTurns"](SimpleNamespace(table=SimpleNamespace(entries=[entry])))
    for number in range(1000, 3000):
        loop.time = partial(float, number * 0.02 + 0.01)
        turns.change()
        answers = 98 if entry.target == "counted" else 100
        ended += [number * TURN_NS + int(TURN_NS * (0.2 + 0.6 * each / answers)) for each in range(answers)]
    counted, others = in_turns(np.array(ended))
    assert set(counted) == {98} and set(others) == {100} and len(counted) > 990
    assert interval(counted, others) == pytest.approx((0.98, 0.98, 0.98))
