"""Requests of a model in a rollout: who gets them, and what is counted."""

import numpy as np
import pytest

from app.core.errors import ErrorCode, Failure, InferError
from app.core.rollout.outcomes import Outcomes
from app.core.rollout.split import WHOLE
from app.core.tensors import InferRequest, RolloutHint, Tensor
from app.rollout.tally import bucket
from app.routing.table import ModelState, VersionEntry
from tests.unit.app.rollout.conftest import BROKEN, CONFIG, LOST, REFUSED, Rollout, counts


def test_requests_are_split_and_counted_by_version(rollout: Rollout) -> None:
    assert sorted(rollout.versions(8)) == [1] * 4 + [2] * 4
    found = rollout.outcomes()
    assert (found.rollout, found.step, found.unavailable) == ("r", 0, "")
    assert counts(found.outcomes.stable) == counts(found.outcomes.candidate) == (4, 0, 0, 0)
    assert sum(found.outcomes.candidate.latencies.values()) == 4
    assert rollout.traffic.take() == [], "counted twice"


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.0, 0), (1e-6, 0), (1.99e-6, 4), (1.02e-3, 40), (1.03e-3, 41)]
)
def test_latency_buckets(seconds: float, expected: int) -> None:
    assert bucket(seconds) == expected


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (BROKEN, (0, 1, 0, 0)),
        (LOST, (0, 1, 0, 0)),
        (REFUSED, (0, 0, 1, 0)),
        (Failure(ErrorCode.NOT_FOUND, ""), (0, 0, 1, 0)),
        (Failure(ErrorCode.CANCELLED, ""), (0, 0, 0, 0)),
        (Failure(ErrorCode.UNSUPPORTED, ""), (0, 0, 1, 0)),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_failures_of_the_server_are_told_from_refusals(
    rollout: Rollout, version: int, failure: Failure, expected: tuple[int, ...]
) -> None:
    rollout.publish(weight=WHOLE * (version - 1), stable_on_error=False)
    rollout.send()
    rollout.last().answer(failure)
    found = rollout.outcomes().outcomes
    assert counts(found.stable if version == 1 else found.candidate) == expected
    assert rollout.received[0].failure == failure


def test_outcomes_belong_to_the_step_in_which_they_were_asked(rollout: Rollout) -> None:
    rollout.publish(weight=WHOLE)
    rollout.send()
    early = rollout.last()
    rollout.publish(weight=0, step=1)
    rollout.versions(1)
    early.answer()
    by_step = {each.step: each.outcomes for each in rollout.traffic.take()}
    assert (by_step[0].candidate.ok, by_step[1].stable.ok) == (1, 1)
    assert by_step[0].stable.ok == by_step[1].candidate.ok == 0


def test_all_that_was_counted_is_known_while_the_rollout_is_on(rollout: Rollout) -> None:
    rollout.versions(4)
    rollout.traffic.take()
    rollout.publish(step=1, weight=WHOLE)
    rollout.versions(3)
    ((split, outcomes),) = rollout.traffic.counted()
    assert (split.step, outcomes.stable.ok, outcomes.candidate.ok) == (1, 2, 5)
    rollout.traffic.take()
    assert rollout.traffic.counted() == [(split, outcomes)]
    rollout.publish(rollout="next", step=0)
    rollout.traffic.take()
    assert rollout.traffic.counted() == [(rollout.split, Outcomes())]
    rollout.publish(splits=False)
    assert rollout.traffic.counted() == []


def test_a_candidate_that_is_not_ready_gets_nothing(rollout: Rollout) -> None:
    rollout.states[1] = ModelState.LOADING
    rollout.publish(weight=WHOLE)
    assert rollout.versions(3) == [1, 1, 1]
    rollout.states[1] = ModelState.READY
    rollout.publish()
    assert rollout.versions(1) == [2]


@pytest.mark.parametrize(("load_seconds", "patience"), [(0.5, 60), (90.0, 270)])
def test_a_candidate_without_a_replica_gets_nothing_until_it_is_back(
    rollout: Rollout, load_seconds: float, patience: int
) -> None:
    rollout.load_seconds = load_seconds
    rollout.publish(weight=WHOLE)
    rollout.router.lost["m:2"] = 1
    for _ in range(2):
        rollout.router.out = {2}
        assert rollout.versions(2) == [1, 1]
        for _ in range(patience - 1):
            found = rollout.outcomes()
            assert found.absent and not found.unavailable, "it may come back"
        rollout.router.out = set()
        assert rollout.traffic.take() == [] and rollout.versions(1) == [2]
        rollout.traffic.take()


def test_a_candidate_that_does_not_come_back_is_reported(rollout: Rollout) -> None:
    rollout.router.out = {2}
    found = [rollout.outcomes().unavailable for _ in range(62)]
    texts = [f"no replica of the candidate was available for {seconds} s" for seconds in (60, 61, 62)]
    assert found == [""] * 59 + texts


def test_an_ensemble_that_lacks_a_model_gets_nothing(
    rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def available(entry: VersionEntry) -> bool:
        raise InferError(ErrorCode.NOT_FOUND, "Request for unknown model")

    monkeypatch.setattr(rollout.router, "available", available)
    rollout.publish(weight=WHOLE)
    assert rollout.versions(1) == [1]
    assert rollout.outcomes().outcomes.stable.ok == 1


def test_a_candidate_that_was_lost_twice_gets_nothing_more_in_this_step(rollout: Rollout) -> None:
    rollout.router.lost["m:2"] = 5  # before this step
    rollout.publish(weight=WHOLE, step=1)
    rollout.router.lost["m:2"] = 6
    assert rollout.traffic.take() == [] and rollout.versions(1) == [2]
    rollout.send()
    rollout.router.lost["m:2"] = 7
    rollout.last().answer(LOST)
    assert rollout.versions(2) == [1, 1]
    assert rollout.outcomes().unavailable == "replicas of the candidate were lost 2 times"
    rollout.publish()
    assert rollout.versions(1) == [1], "a table of another model brings it back"
    rollout.publish(step=2)
    assert rollout.versions(1) == [2]


def test_losses_of_an_application_are_not_those_of_the_one_that_replaced_it(rollout: Rollout) -> None:
    rollout.router.lost = {"m:2": 1, "m:2@2": 5}
    rollout.publish("m:2@2", weight=WHOLE)
    assert rollout.traffic.take() == [] and rollout.versions(1) == [2]


@pytest.mark.parametrize(
    "candidate", ["model_transaction_policy { decoupled: true }", "sequence_batching {}"]
)
def test_a_candidate_of_another_kind_gets_nothing(rollout: Rollout, candidate: str) -> None:
    rollout.configs[1] = candidate
    rollout.publish(weight=WHOLE)
    assert rollout.versions(2) == [1, 1]
    assert "only one of the two versions" in rollout.outcomes().unavailable


def test_a_stream_that_ends_before_its_outputs_is_a_failure_of_its_version(rollout: Rollout) -> None:
    rollout.configs = [f"{CONFIG} model_transaction_policy {{ decoupled: true }}"] * 2
    rollout.publish(weight=WHOLE)
    for good in (True, False):
        rollout.send()
        rollout.last().respond(*(rollout.last().promised if good else ()), final=False)
        rollout.last().respond()
    found = rollout.outcomes().outcomes.candidate
    assert (found.ok, found.failed) == (1, 1)
    assert list(found.reasons) == ["model 'm' version 2: it answered without output 'y'"]


def test_header_rules_reach_the_candidate_at_weight_zero(rollout: Rollout) -> None:
    rollout.publish(weight=0)
    assert rollout.versions(2, rollout=RolloutHint("candidate")) == [2, 2]
    assert rollout.versions(2) == [1, 1]


def test_what_is_held_back_goes_to_the_candidate_without_a_stable_replica(rollout: Rollout) -> None:
    rollout.publish(weight=WHOLE // 100 * 99, held_back=True)
    assert rollout.versions(200).count(1) == 2
    rollout.router.out = {1}
    assert rollout.versions(200) == [2] * 200


def test_no_sequence_is_held_back(rollout: Rollout) -> None:
    rollout.configs = ["sequence_batching {}"] * 2
    rollout.publish(weight=WHOLE // 2, held_back=True)
    assert rollout.versions(8, sequence_id=7) == [2] * 8


def test_requests_resolved_before_the_end_of_a_rollout_are_answered(rollout: Rollout) -> None:
    resolved = rollout.router.resolve("m")
    rollout.publish(splits=False)
    resolved.target.submit(InferRequest("m", "", ()), rollout.received.append)
    assert rollout.last().version == 2
    rollout.configs = ["model_transaction_policy { decoupled: true }"] * 2
    rollout.publish(splits=False)
    with pytest.raises(InferError, match="not at ready state"):
        resolved.target.submit(InferRequest("m", "", ()), rollout.received.append)


def test_mirrored_requests_are_not_counted(rollout: Rollout) -> None:
    rollout.versions(4, mirrored=True)
    assert rollout.traffic.take() == []


class TestSequences:
    @pytest.fixture(autouse=True)
    def sequences(self, rollout: Rollout) -> None:
        rollout.configs = ["sequence_batching {}"] * 2
        rollout.publish()

    def test_a_sequence_asks_the_drawn_version_first(self, rollout: Rollout) -> None:
        for number in range(1, 21):
            rollout.versions(1, sequence_id=number, sequence_start=True)
            rollout.versions(2, sequence_id=number)
            first, *others = rollout.router.sequences[-3:]
            assert others == [first, first] and sorted(first) == [1, 2]
        assert {tuple(order) for order in rollout.router.sequences} == {(1, 2), (2, 1)}

    def test_sequences_go_on_at_either_version_when_the_weight_changes(self, rollout: Rollout) -> None:
        rollout.publish(weight=0, step=1)
        rollout.versions(1, sequence_id=7)
        rollout.publish(weight=WHOLE, step=2)
        rollout.versions(1, sequence_id=7)
        rollout.router.out = {2}
        rollout.versions(1, sequence_id=7)
        assert rollout.router.sequences == [[1, 2], [2, 1], [1, 2]]

    def test_a_sequence_is_counted_for_the_version_that_answers_it(self, rollout: Rollout) -> None:
        rollout.publish(weight=WHOLE)
        rollout.send(sequence_id=7)
        rollout.last().version = 1
        rollout.last().answer()
        found = rollout.outcomes().outcomes
        assert (found.stable.ok, found.candidate.ok) == (1, 0)

    def test_a_failed_sequence_is_not_repeated(self, rollout: Rollout) -> None:
        rollout.publish(weight=WHOLE)
        rollout.send(sequence_id=7)
        rollout.last().answer(BROKEN)
        assert [each.failure for each in rollout.received] == [BROKEN] and len(rollout.router.asked) == 1


def test_refusals_of_the_router_are_counted(rollout: Rollout) -> None:
    rollout.publish(weight=0)
    rollout.router.out = {1}
    with pytest.raises(InferError):
        rollout.send()
    assert counts(rollout.outcomes().outcomes.stable) == (0, 1, 0, 0)


def test_classes_of_both_versions_are_counted_where_the_rollout_compares_them(rollout: Rollout) -> None:
    scores = Tensor.from_array("y", np.array([0.1, 0.9], np.float32))
    rollout.publish(classes="*", weight=WHOLE)
    rollout.send()
    rollout.last().answer(None, scores)
    rollout.publish(classes="*", weight=0)
    rollout.send()
    rollout.last().answer(None, scores)
    rollout.send()
    rollout.last().answer(BROKEN)
    found = rollout.outcomes().outcomes
    assert (found.stable.classes, found.candidate.classes) == ({"1": 1}, {"1": 1})
    rollout.publish(classes="", weight=0)
    rollout.send()
    rollout.last().answer(None, scores)
    assert rollout.outcomes().outcomes.stable.classes == {}
