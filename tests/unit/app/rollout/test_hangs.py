"""Requests that get no answer: they are late, hang, or are at a candidate that is withdrawn."""

from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode
from app.core.failures import CANCELLED
from app.core.rollout.split import WHOLE
from app.core.tensors import Tensor
from app.routing.table import ModelState
from tests.unit.app.rollout.conftest import CONFIG, LOST, Asked, Rollout, counts

STREAM = f"{CONFIG} model_transaction_policy {{ decoupled: true }}"


@pytest.fixture(autouse=True)
def at_the_candidate(rollout: Rollout) -> None:
    rollout.publish(weight=WHOLE)


def texts(rollout: Rollout) -> list[str]:
    return [each.failure.message if each.failure else "" for each in rollout.received]


def asked_stable(rollout: Rollout, seconds: float, number: int = 40) -> None:
    """Have the stable version answer so many requests, each after so long."""
    weight = rollout.split.weight
    rollout.publish(weight=0)
    for _ in range(number):
        rollout.send()
    rollout.clock.wait(seconds)
    for asked in rollout.router.asked:
        asked.answer()
    rollout.router.asked.clear()
    rollout.received.clear()
    rollout.traffic.take()
    rollout.publish(weight=weight)


@pytest.mark.parametrize("fields", [{}, {"regions": True}, {"chain": ("caller",), "id": "x"}])
def test_a_candidate_that_hangs_is_rescued_without_a_deadline(
    rollout: Rollout, fields: dict[str, Any]
) -> None:
    rollout.send(**fields)
    candidate = rollout.last()
    rollout.clock.wait(9.5)
    assert rollout.router.asked == [candidate]
    rollout.clock.wait(1.0)
    assert candidate.cancelled and rollout.last().version == 1
    rollout.last().answer()
    candidate.answer(CANCELLED)
    assert [each.model_version for each in rollout.received] == ["1"]
    found = rollout.outcomes().outcomes.candidate
    assert counts(found) == (0, 1, 0, 1) and (found.late, found.prompt) == (1, 0)
    assert list(found.reasons) == ["model 'm' version 2 has not answered for 10 s"]


def test_a_request_that_is_not_repeated_ends_with_an_error_that_says_so(rollout: Rollout) -> None:
    rollout.publish(stable_on_error=False, hang_seconds=3.0)
    rollout.send(id="x")
    rollout.clock.wait(3.3)
    assert texts(rollout) == ["model 'm' version 2 has not answered for 3 s"]
    (received,) = rollout.received
    assert received.id == "x" and received.failure is not None
    assert received.failure.code is ErrorCode.UNAVAILABLE
    assert counts(rollout.outcomes().outcomes.candidate) == (0, 1, 0, 0)


def test_what_takes_ten_times_as_long_as_usual_is_late_and_answered_by_the_stable_version(
    rollout: Rollout,
) -> None:
    asked_stable(rollout, 0.2)
    rollout.send()
    candidate = rollout.last()
    rollout.clock.wait(1.9)
    assert rollout.last() is candidate
    rollout.clock.wait(1.0)
    rollout.last().answer()
    assert [each.model_version for each in rollout.received] == ["1"] and not candidate.cancelled
    candidate.answer()
    found = rollout.outcomes().outcomes.candidate
    assert counts(found) == (1, 0, 0, 0) and (found.late, found.prompt) == (1, 0)


def test_no_candidate_is_given_up_for_being_late(rollout: Rollout) -> None:
    asked_stable(rollout, 0.2)
    for _ in range(400):
        rollout.send()
    rollout.clock.wait(3.0)
    assert 40 < sum(asked.version == 1 for asked in rollout.router.asked) <= 60
    found = rollout.outcomes()
    assert found.outcomes.candidate.late == 400 and not found.unavailable


def test_a_stable_version_that_is_slow_itself_makes_nothing_a_hang(rollout: Rollout) -> None:
    asked_stable(rollout, 8.0)
    rollout.send()
    rollout.clock.wait(15.0)
    assert len(rollout.router.asked) == 1
    rollout.clock.wait(5.0)
    assert rollout.last().version == 1


def test_a_stall_does_not_hide_that_the_candidate_hangs(rollout: Rollout) -> None:
    for _ in range(4):
        asked_stable(rollout, 1.0, 200)
    asked_stable(rollout, 6.0, 1000)
    asked_stable(rollout, 1.0, 200)
    rollout.send()
    rollout.clock.wait(10.5)
    assert rollout.last().version == 1


def test_nothing_hangs_for_being_as_slow_as_the_stable_version_is_now(rollout: Rollout) -> None:
    for seconds in (1.0, 1.0, 1.0, 12.0):
        asked_stable(rollout, seconds, 200)
    rollout.send()
    candidate = rollout.last()
    rollout.clock.wait(11.5)
    assert not candidate.cancelled


def test_the_stable_version_counts_as_failed_too_but_answers(rollout: Rollout) -> None:
    rollout.publish(weight=0)
    rollout.send()
    rollout.clock.wait(11.0)
    found = rollout.outcomes().outcomes.stable
    assert counts(found) == (0, 1, 0, 0) and found.late == 1
    rollout.last().answer()
    assert texts(rollout) == [""] and not rollout.traffic.take(), "counted twice"


def test_what_a_process_that_stood_still_has_not_read_is_no_hang(rollout: Rollout) -> None:
    rollout.send()
    rollout.clock.now += 60.0
    rollout.clock.wait(1.0)
    assert len(rollout.router.asked) == 1
    rollout.last().answer()
    assert texts(rollout) == [""]
    found = rollout.outcomes().outcomes.candidate
    assert (found.ok, found.late) == (1, 0)


@pytest.mark.parametrize("on_error", [True, False])
def test_a_clients_deadline_that_ends_a_request_is_a_failure(rollout: Rollout, on_error: bool) -> None:
    rollout.publish(stable_on_error=on_error)
    call = rollout.send(deadline=rollout.clock.now + 1.0, regions=True)
    rollout.clock.wait(0.95)
    call.cancel()
    rollout.last().answer(CANCELLED)
    assert texts(rollout) == [CANCELLED.message]
    assert counts(rollout.outcomes().outcomes.candidate) == (0, 1, 0, 0)


def test_a_client_that_leaves_a_late_request_leaves_it_late(rollout: Rollout) -> None:
    asked_stable(rollout, 0.01)
    rollout.publish(stable_on_error=False)
    call = rollout.send()
    rollout.clock.wait(3.0)
    call.cancel()
    rollout.last().answer(CANCELLED)
    found = rollout.outcomes().outcomes.candidate
    assert (found.late, found.prompt, found.cancelled) == (1, 0, 1)


class TestStreams:
    @pytest.fixture(autouse=True)
    def streams(self, rollout: Rollout) -> None:
        rollout.configs = [STREAM] * 2
        rollout.publish()

    def test_one_without_a_response_is_repeated(self, rollout: Rollout) -> None:
        rollout.send()
        candidate = rollout.last()
        rollout.clock.wait(10.5)
        stable = rollout.last()
        stable.respond(*stable.promised, final=False)
        stable.respond(*stable.promised, final=False)
        candidate.respond(*candidate.promised, final=False)
        stable.respond()
        assert [(each.model_version, each.final) for each in rollout.received] == [
            ("1", False),
            ("1", False),
            ("1", True),
        ]
        assert counts(rollout.outcomes().outcomes.candidate) == (0, 1, 0, 1)

    def test_one_that_fails_before_its_first_response_is_repeated(self, rollout: Rollout) -> None:
        rollout.send()
        rollout.last().answer(LOST)
        rollout.last().answer()
        assert texts(rollout) == [""]
        odd = Tensor.from_array("z", np.zeros(2, np.float32))
        rollout.send()
        candidate = rollout.last()
        candidate.respond(odd, final=False)
        assert candidate.cancelled and rollout.last().version == 1
        rollout.last().answer()
        assert texts(rollout) == ["", ""] and counts(rollout.outcomes().outcomes.candidate) == (0, 2, 0, 2)

    def test_one_that_falls_silent_ends_with_an_error(self, rollout: Rollout) -> None:
        rollout.send()
        candidate = rollout.last()
        for _ in range(4):
            rollout.clock.wait(8.0)
            candidate.respond(*candidate.promised, final=False)
        assert rollout.router.asked == [candidate]
        rollout.clock.wait(10.5)
        assert candidate.cancelled and rollout.router.asked == [candidate]
        assert texts(rollout) == [""] * 4 + ["model 'm' version 2 has not answered for 10 s"]

    def test_the_version_that_responds_first_has_the_stream(self, rollout: Rollout) -> None:
        asked_stable(rollout, 0.01)
        rollout.send()
        candidate = rollout.last()
        rollout.clock.wait(1.3)
        stable = rollout.last()
        assert stable.version == 1
        candidate.respond(*candidate.promised, final=False)
        assert stable.cancelled
        stable.respond(*stable.promised, final=False)
        candidate.respond()
        assert [each.model_version for each in rollout.received] == ["2", "2"]


class TestSequences:
    @pytest.fixture(autouse=True)
    def sequences(self, rollout: Rollout) -> None:
        rollout.configs = ["sequence_batching {}"] * 2
        rollout.publish()

    @pytest.mark.parametrize("version", [1, 2])
    def test_one_that_hangs_at_the_candidate_ends_with_an_error(self, rollout: Rollout, version: int) -> None:
        rollout.send(sequence_id=7, sequence_start=True)
        asked = rollout.last()
        asked.version = version
        rollout.clock.wait(10.5)
        assert texts(rollout) == ["model 'm' version 2 has not answered for 10 s"] * (version - 1)
        assert asked.cancelled is (version == 2) and len(rollout.router.asked) == 1
        found = rollout.outcomes().outcomes
        assert (found.stable.failed, found.candidate.failed) == (2 - version, version - 1)
        asked.answer()
        assert len(rollout.received) == 1

    def test_one_of_a_candidate_that_is_withdrawn_goes_on(self, rollout: Rollout) -> None:
        rollout.send(sequence_id=7, sequence_start=True)
        candidate = rollout.last()
        rollout.publish(state="rolling_back", weight=0, step=1)
        rollout.clock.wait(3.0)
        candidate.answer()
        assert texts(rollout) == [""] and not candidate.cancelled


def withdraw(rollout: Rollout, gone: bool) -> None:
    """Publish a table of a rollout that is rolled back, or whose candidate is gone at once."""
    if gone:
        rollout.states[1] = ModelState.UNLOADING
        rollout.publish(splits=False)
    else:
        rollout.publish(state="rolling_back", weight=0, step=1)


@pytest.mark.parametrize("gone", [False, True])
def test_requests_at_a_candidate_that_is_withdrawn_are_repeated_at_once(rollout: Rollout, gone: bool) -> None:
    for _ in range(150):
        rollout.send()
    in_flight: list[Asked] = list(rollout.router.asked)
    withdraw(rollout, gone)
    repeated = rollout.router.asked[150:]
    assert all(asked.cancelled for asked in in_flight) and [each.version for each in repeated] == [1] * 150
    for asked in in_flight:
        asked.answer(CANCELLED)
    for asked in repeated:
        asked.answer()
    assert texts(rollout) == [""] * 150
    assert all(step.outcomes.candidate.failed == 0 for step in rollout.traffic.take())


@pytest.mark.parametrize("gone", [False, True])
def test_requests_that_cannot_be_repeated_have_the_usual_time(rollout: Rollout, gone: bool) -> None:
    asked_stable(rollout, 0.01)
    rollout.publish(stable_on_error=False)
    for _ in range(2):
        rollout.send()
    prompt, stuck = rollout.router.asked
    withdraw(rollout, gone)
    rollout.clock.wait(0.5)
    prompt.answer()
    rollout.clock.wait(1.0)
    assert stuck.cancelled
    gone_text = "model 'm' version 2 was withdrawn: its rollout has failed or was aborted"
    assert texts(rollout) == ["", gone_text]


def test_requests_go_on_at_a_candidate_that_has_taken_over(rollout: Rollout) -> None:
    rollout.send()
    rollout.states[0] = ModelState.UNLOADING
    rollout.publish(splits=False)
    rollout.clock.wait(60.0)
    assert not rollout.last().cancelled
    rollout.last().answer()
    assert texts(rollout) == [""]
