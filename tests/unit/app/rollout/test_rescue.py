"""Failures of the candidate that the stable version answers."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from app.core.errors import Failure, InferError
from app.core.failures import CANCELLED
from app.core.rollout.split import WHOLE
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.rollout.tally import bucket
from tests.unit.app.rollout.conftest import BROKEN, LOST, REFUSED, Rollout, counts


@pytest.fixture(autouse=True)
def at_the_candidate(rollout: Rollout) -> None:
    rollout.publish(weight=WHOLE)


@pytest.mark.parametrize("failure", [BROKEN, LOST])
def test_a_failure_of_the_candidate_is_answered_by_the_stable_version(
    rollout: Rollout, failure: Failure
) -> None:
    rollout.send(id="x")
    first = rollout.last()
    first.answer(failure)
    assert not rollout.received
    again = rollout.last()
    assert (again.version, again.request) == (1, first.request)
    again.answer()
    assert [(each.id, each.model_version, each.failure) for each in rollout.received] == [("x", "1", None)]
    found = rollout.outcomes().outcomes
    assert counts(found.candidate) == (0, 1, 0, 1)
    assert counts(found.stable) == (0, 0, 0, 0), "one request of a client counts once"


def test_an_answer_of_another_shape_is_a_failure(rollout: Rollout) -> None:
    rollout.send(id="x")
    rollout.last().answer(None, Tensor.from_array("y", np.zeros((1, 2), np.float32)))
    assert not rollout.received
    rollout.last().answer(None, Tensor.from_array("y", np.zeros(2, np.float32)))
    assert [each.model_version for each in rollout.received] == ["1"]
    assert counts(rollout.outcomes().outcomes.candidate) == (0, 1, 0, 1)


@pytest.mark.parametrize("name", ["", "z"])
def test_an_output_that_is_missing_or_misnamed_is_a_failure(rollout: Rollout, name: str) -> None:
    rollout.send(id="x", outputs=(RequestedOutput("y"),))
    rollout.last().respond(*([Tensor.from_array(name, np.zeros(2, np.float32))] if name else []))
    assert not rollout.received
    rollout.last().answer()
    assert [(each.model_version, len(each.outputs)) for each in rollout.received] == [("1", 1)]
    found = rollout.outcomes().outcomes.candidate
    assert counts(found) == (0, 1, 0, 1) and "output" in next(iter(found.reasons))


@pytest.mark.parametrize("repeated", [False, True])
def test_a_response_before_an_empty_final_one_is_the_answer(rollout: Rollout, repeated: bool) -> None:
    rollout.send()
    if repeated:
        rollout.last().answer(BROKEN)
    answering = rollout.last()
    answering.respond(*answering.promised, final=False)
    assert not rollout.received, "what comes next may be a failure"
    answering.respond()
    assert [(each.final, len(each.outputs)) for each in rollout.received] == [(False, 1), (True, 0)]
    assert counts(rollout.outcomes().outcomes.candidate) == ((0, 1, 0, 1) if repeated else (1, 0, 0, 0))


def test_two_responses_of_a_candidate_that_may_have_one_are_a_failure(rollout: Rollout) -> None:
    rollout.send()
    candidate = rollout.last()
    candidate.respond(*candidate.promised, final=False)
    candidate.answer()
    rollout.last().answer()
    assert [(each.model_version, each.final) for each in rollout.received] == [("1", True)]
    assert counts(rollout.outcomes().outcomes.candidate) == (0, 1, 0, 1)


def test_both_versions_answer_in_another_shape(rollout: Rollout) -> None:
    rollout.send(id="x")
    for _ in range(2):
        rollout.last().answer(None, Tensor.from_array("y", np.zeros((1, 2), np.float32)))
    assert [each.failure for each in rollout.received] == [None], "as without a rollout"
    assert counts(rollout.outcomes().outcomes.candidate) == (0, 1, 0, 0)


def test_a_candidate_that_cannot_be_sent_to_is_rescued_too(
    rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout.router, "available", lambda entry: True)
    rollout.router.out = {2}
    assert rollout.versions(1) == [1]
    assert counts(rollout.outcomes().outcomes.candidate) == (0, 1, 0, 1)
    rollout.router.out = {1, 2}
    with pytest.raises(InferError, match="version 2 is not at ready state"):
        rollout.send()


@pytest.mark.parametrize("answer", [None, REFUSED, LOST])
def test_the_candidate_is_blamed_for_what_only_it_refuses(rollout: Rollout, answer: Failure | None) -> None:
    rollout.send()
    rollout.last().answer(REFUSED)
    assert not rollout.received
    rollout.last().answer(answer)
    assert [(each.model_version, each.failure) for each in rollout.received] == [
        ("" if answer else "1", answer)
    ]
    found = rollout.outcomes().outcomes.candidate
    assert counts(found) == ((0, 0, 1, 0) if answer else (0, 1, 0, 1))
    assert list(found.reasons) == ([] if answer else ["bad shape"]) and found.prompt == 1


def test_requests_that_both_versions_refuse_give_no_candidate_up(rollout: Rollout) -> None:
    for _ in range(300):
        rollout.send()
        rollout.last().answer(REFUSED)
        if rollout.last().version == 1:
            rollout.last().answer(REFUSED)
    found = rollout.outcomes()
    assert found.unavailable == "" and counts(found.outcomes.candidate) == (0, 0, 300, 0)
    assert len(rollout.received) == 300


def test_a_request_whose_client_leaves_is_no_refusal(rollout: Rollout) -> None:
    rollout.send().cancel()
    rollout.last().answer(CANCELLED)
    found = rollout.outcomes().outcomes.candidate
    assert counts(found) == (0, 0, 0, 0) and (found.cancelled, found.prompt) == (1, 0)


def test_both_versions_failing_is_the_failure_of_the_stable_one(rollout: Rollout) -> None:
    rollout.send()
    rollout.last().answer(BROKEN)
    rollout.last().answer(LOST)
    assert [each.failure for each in rollout.received] == [LOST]
    assert counts(rollout.outcomes().outcomes.candidate) == (0, 1, 0, 0)


def test_nothing_is_repeated_where_the_policy_says_none(rollout: Rollout) -> None:
    rollout.publish(stable_on_error=False)
    rollout.send()
    rollout.last().answer(BROKEN)
    assert [each.failure for each in rollout.received] == [BROKEN]


def test_a_decoupled_model_is_not_repeated(rollout: Rollout) -> None:
    rollout.configs = ["model_transaction_policy { decoupled: true }"] * 2
    rollout.publish()
    rollout.send()
    rollout.last().sink(InferResponse("m", "2", final=False))
    rollout.last().answer(BROKEN)
    assert len(rollout.received) == 2 and len(rollout.router.asked) == 1


def test_nothing_is_repeated_after_the_deadline_or_a_cancellation(rollout: Rollout) -> None:
    rollout.send(deadline=101.0, regions=True)
    rollout.clock.wait(1.0)
    rollout.last().answer(LOST)
    call = rollout.send()
    call.cancel()
    assert rollout.last().cancelled
    rollout.last().answer(LOST)
    assert [each.failure for each in rollout.received] == [LOST, LOST]
    assert len(rollout.router.asked) == 2


def test_a_cancellation_reaches_the_stable_version(rollout: Rollout) -> None:
    call = rollout.send()
    rollout.last().answer(BROKEN)
    call.cancel()
    assert rollout.last().cancelled and rollout.last().version == 1


def test_a_late_candidate_is_rescued_at_half_of_the_deadline(rollout: Rollout) -> None:
    rollout.send(deadline=104.0)
    candidate = rollout.last()
    rollout.clock.wait(1.9)
    assert rollout.last() is candidate
    rollout.clock.wait(0.1)
    assert rollout.last().version == 1 and rollout.last().request.deadline == 104.0
    rollout.last().answer()
    assert [each.model_version for each in rollout.received] == ["1"]
    candidate.answer(LOST)
    assert len(rollout.received) == 1 and len(rollout.router.asked) == 2
    assert counts(rollout.outcomes().outcomes.candidate) == (0, 1, 0, 1)


@pytest.mark.parametrize("late", [False, True])
def test_a_slow_candidate_that_answers_is_counted_as_such(rollout: Rollout, late: bool) -> None:
    rollout.send(deadline=104.0)
    candidate = rollout.last()
    rollout.clock.wait(2.0)
    stable = rollout.last()
    if late:
        stable.answer()
    rollout.clock.wait(1.0)
    candidate.answer()
    assert stable.cancelled is not late
    assert [each.model_version for each in rollout.received] == ["1" if late else "2"]
    found = rollout.outcomes().outcomes.candidate
    assert counts(found) == (1, 0, 0, 0) and found.latencies == {bucket(3.0): 1}


def test_a_hedge_that_fails_leaves_the_candidate_its_time(rollout: Rollout) -> None:
    rollout.send(deadline=104.0)
    candidate = rollout.last()
    rollout.clock.wait(2.0)
    rollout.last().answer(LOST)
    assert not rollout.received
    candidate.answer()
    assert [each.model_version for each in rollout.received] == ["2"]


LARGE = Tensor.from_array("x", np.zeros(1 << 19, np.float32))


@pytest.mark.parametrize("fields", [{"regions": True}, {"chain": ("caller",), "id": "x", "inputs": (LARGE,)}])
def test_memory_that_is_not_ours_is_used_by_one_version_at_a_time(
    rollout: Rollout, fields: dict[str, Any]
) -> None:
    rollout.send(deadline=104.0, **fields)
    rollout.clock.wait(3.0)
    assert len(rollout.router.asked) == 1
    rollout.last().answer(BROKEN)
    assert rollout.last().version == 1


def test_a_calling_models_request_is_copied_for_both_versions(rollout: Rollout) -> None:
    values = np.ones(4, np.float32)
    rollout.send(deadline=104.0, chain=("caller",), id="x", inputs=(Tensor.from_array("x", values),))
    rollout.clock.wait(3.0)
    values[:] = 7  # the caller goes on, once it has the answer
    assert [asked.version for asked in rollout.router.asked] == [2, 1]
    given = [asked.request.inputs[0].array().tolist() for asked in rollout.router.asked]
    assert given == [[1, 1, 1, 1]] * 2


def test_a_candidate_that_always_fails_costs_no_client_an_error(rollout: Rollout) -> None:
    rollout.publish(weight=WHOLE // 2)
    in_flight = []
    for _ in range(1000):
        rollout.send()
        in_flight.append(rollout.last())
        if len(in_flight) == 8:
            for asked in in_flight:
                asked.answer(BROKEN if asked.version == 2 else None)
                if asked.version == 2:
                    rollout.last().answer()
            in_flight.clear()
    assert len(rollout.received) == 1000 and all(each.failure is None for each in rollout.received)
    found = rollout.outcomes()
    assert "the candidate fails or delays more" in found.unavailable
    candidate = found.outcomes.candidate
    assert candidate.failed == candidate.rescued and 100 < candidate.failed < 200


def test_requests_in_flight_when_the_candidate_is_given_up_are_repeated(rollout: Rollout) -> None:
    for _ in range(150):
        rollout.send()
    in_flight = list(rollout.router.asked)
    for asked in in_flight:
        asked.answer(BROKEN)
        rollout.last().answer()
    assert [each.failure for each in rollout.received] == [None] * 150
    assert rollout.versions(1) == [1]


def test_a_failure_of_both_versions_is_not_the_candidates(rollout: Rollout) -> None:
    for _ in range(300):
        rollout.send()
        rollout.last().answer(BROKEN)
        if rollout.last().version == 1:
            rollout.last().answer(BROKEN)
    assert rollout.outcomes().unavailable == ""
    repeated = sum(asked.version == 1 for asked in rollout.router.asked)
    assert repeated == 100 + 300 // 5 - 1 or repeated == 100 + 300 // 5
    assert len(rollout.received) == 300


class Receiver:
    """Keeps its request to cancel it, as the fronts do."""

    def __init__(self, rollout: Rollout) -> None:
        entry = rollout.router.resolve("m")
        self.call = entry.target.submit(InferRequest("m", "", (), deadline=104.0), self.take)

    def take(self, response: InferResponse) -> None:
        self.answered = response.final


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("failure", [None, BROKEN])
def test_an_answered_call_is_not_kept_alive(rollout: Rollout, late: bool, failure: Failure | None) -> None:
    """It would be garbage for the collector, and the request's tensors with it."""
    gc.disable()
    try:
        receiver = Receiver(rollout)
        gone = weakref.ref(receiver)
        if late:
            rollout.clock.wait(2.0)
        for asked in list(rollout.router.asked):
            asked.answer(failure)
        if not late and failure is not None:
            rollout.last().answer()
        assert receiver.answered
        rollout.router.asked.clear()
        rollout.clock.wait(5.0)
        del asked, receiver
        assert gone() is None
    finally:
        gc.enable()
