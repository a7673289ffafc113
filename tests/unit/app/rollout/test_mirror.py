"""Mirrored requests: after the client's answer, compared, within limits, and of no consequence to clients."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, Failure, FailureReason
from app.core.rollout.outcomes import MirrorOutcomes
from app.core.rollout.split import WHOLE
from app.core.tensors import InferResponse, Tensor
from app.rollout import mirror, repeated
from nereid_client.comparison.rules import ComparisonRules, OutputRule, Rule
from tests.unit.app.rollout.conftest import BROKEN, CONFIG, Asked, Rollout
from tests.waiting import until


@pytest.fixture(autouse=True)
def mirrored(rollout: Rollout) -> None:
    rollout.publish(weight=0, mirror=WHOLE)


def output(*values: float, size: int = 0) -> Tensor:
    return Tensor.from_array("y", np.array(values or [1.0] * size, np.float32))


def answer(asked: Asked, *outputs: Tensor) -> None:
    asked.sink(InferResponse("m", str(asked.version), outputs))


def outcomes(rollout: Rollout) -> MirrorOutcomes:
    return rollout.outcomes().outcomes.mirror


def test_a_request_is_repeated_after_its_answer(rollout: Rollout) -> None:
    rollout.send(id="x", trace="-", priority=1, timeout_us=5, parameters={"a": 1})
    (stable,) = rollout.router.asked
    assert stable.version == 1
    answer(stable, output(1, 2))
    assert [each.model_version for each in rollout.received] == ["1"]
    candidate = rollout.last()
    assert candidate.version == 2
    sent = candidate.request
    assert (sent.id, sent.parameters, sent.mirrored, sent.model_version) == ("x", {"a": 1}, True, "2")
    assert (sent.trace, sent.timeout_us, sent.priority) == ("", 0, 0) and sent.deadline > 0
    answer(candidate, output(1, 2))
    assert len(rollout.received) == 1
    found = rollout.outcomes().outcomes
    assert found.mirror == MirrorOutcomes(compared=1)
    assert (found.stable.ok, found.candidate.ok) == (1, 0)


def test_a_share_of_the_requests_is_mirrored(rollout: Rollout) -> None:
    rollout.publish(mirror=WHOLE // 4)
    for _ in range(20):
        rollout.send()
        answer(rollout.last())
        if rollout.last().request.mirrored:
            answer(rollout.last())
    assert sum(asked.request.mirrored for asked in rollout.router.asked) == 5


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        ("exact", (1, 2.5), MirrorOutcomes(1, differing=1, max_difference=0.5)),
        (OutputRule(atol=0.5), (1, 2.5), MirrorOutcomes(1, max_difference=0.5)),
        ("argmax", (2, 1), MirrorOutcomes(1, disagreeing=1)),
        (OutputRule(argmax=True, atol=9.0), (2, 1), MirrorOutcomes(1, disagreeing=1, max_difference=1.0)),
    ],
)
def test_differences_are_counted(
    rollout: Rollout, rule: Rule, values: tuple[float, ...], expected: MirrorOutcomes
) -> None:
    rollout.publish(comparison=ComparisonRules({"y": rule}))
    rollout.send()
    answer(rollout.last(), output(1, 2))
    answer(rollout.last(), output(*values))
    assert outcomes(rollout) == expected


async def test_large_outputs_are_compared_in_a_thread(rollout: Rollout) -> None:
    rollout.send()
    answer(rollout.last(), output(size=100_000))
    answer(rollout.last(), output(size=100_000))
    assert rollout.traffic._tallies["r", 0].outcomes.mirror.compared == 0, "it would block the loop"
    await until(lambda: rollout.traffic._tallies["r", 0].outcomes.mirror.compared == 1)


async def test_outputs_that_do_not_fit_their_shape_differ(rollout: Rollout) -> None:
    rollout.configs = [CONFIG.replace("-1", "-1, 3")] * 2
    rollout.publish()
    for size in (1, 100_000):
        rollout.send()
        odd = Tensor("y", "FP32", (size, 3), bytes(4 * size))
        answer(rollout.last(), odd)
        answer(rollout.last(), Tensor("y", "FP32", (size, 3), b"\1" + bytes(4 * size - 1)))
    await until(lambda: rollout.traffic._tallies["r", 0].outcomes.mirror.differing == 2)


def test_what_the_stable_version_leaves_out_too_is_no_failure(rollout: Rollout) -> None:
    rollout.send()
    answer(rollout.last())
    answer(rollout.last())
    assert outcomes(rollout) == MirrorOutcomes(compared=1)


def test_an_output_that_is_missing_is_a_failure(rollout: Rollout) -> None:
    rollout.send()
    answer(rollout.last(), output(1, 1))
    answer(rollout.last())
    assert outcomes(rollout) == MirrorOutcomes(failed=1)


def test_a_response_before_an_empty_final_one_is_compared(rollout: Rollout) -> None:
    rollout.send()
    for value in (1, 2):
        rollout.last().respond(output(value), final=False)
        answer(rollout.last())
    assert outcomes(rollout) == MirrorOutcomes(compared=1, differing=1, max_difference=1.0)


@pytest.mark.parametrize(
    "odd",
    [
        Tensor.from_array("y", np.ones(2, np.float64)),
        Tensor.from_array("y", np.ones((1, 2), np.float32)),
        Tensor.from_array("z", np.ones(2, np.float32)),
    ],
    ids=["datatype", "shape", "name"],
)
def test_outputs_other_than_its_configuration_says_are_failures(rollout: Rollout, odd: Tensor) -> None:
    rollout.send()
    answer(rollout.last(), output(1, 1))
    answer(rollout.last(), odd)
    assert outcomes(rollout) == MirrorOutcomes(failed=1)


def test_failures_of_the_candidate_are_counted_and_seen_by_nobody(rollout: Rollout) -> None:
    rollout.send()
    answer(rollout.last())
    rollout.last().answer(BROKEN)
    assert [each.failure for each in rollout.received] == [None]
    found = rollout.outcomes().outcomes
    assert found.mirror == MirrorOutcomes(failed=1) and found.candidate.failed == 0


def test_what_the_stable_version_fails_is_not_mirrored(rollout: Rollout) -> None:
    rollout.send()
    rollout.last().answer(BROKEN)
    assert len(rollout.router.asked) == 1


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (CONFIG, {"regions": True}),
        ("sequence_batching {}", {"sequence_id": 7}),
        ("model_transaction_policy { decoupled: true }", {}),
    ],
)
def test_requests_that_cannot_be_repeated_are_not_mirrored(
    rollout: Rollout, config: str, fields: dict[str, Any]
) -> None:
    rollout.configs = [config] * 2
    rollout.publish()
    rollout.send(**fields)
    rollout.last().answer()
    assert len(rollout.router.asked) == 1


def test_nothing_is_mirrored_to_a_candidate_that_is_not_there(rollout: Rollout) -> None:
    rollout.router.out = {2}
    assert rollout.versions(2) == [1, 1]
    rollout.send()
    rollout.router.out = {2}
    rollout.last().answer()
    assert len(rollout.router.asked) == 3


def test_mirrored_requests_have_the_lowest_priority(rollout: Rollout) -> None:
    rollout.configs = ["dynamic_batching { priority_levels: 5 default_priority_level: 2 }"] * 2
    rollout.publish()
    rollout.send(priority=1)
    answer(rollout.last())
    assert rollout.last().request.priority == 5


def test_a_candidate_that_is_slow_with_them_gets_few(
    rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated, "monotonic", lambda: rollout.clock.now)
    many(rollout)
    for expected in (mirror.MAX_UNDER_WAY, 4, 4):
        for _ in range(mirror.MAX_UNDER_WAY + 3):
            rollout.send()
            answer(rollout.last())
        under_way = [asked for asked in rollout.router.asked if asked.request.mirrored]
        assert len(under_way) == expected
        rollout.router.asked.clear()
        rollout.clock.wait(2.0)
        for asked in under_way:
            answer(asked)


def test_what_its_own_queue_refuses_is_skipped(rollout: Rollout) -> None:
    full = Failure(ErrorCode.UNAVAILABLE, "Exceeds maximum queue size", FailureReason.REJECTED)
    many(rollout)
    rollout.send()
    answer(rollout.last())
    rollout.last().answer(full)
    assert outcomes(rollout) == MirrorOutcomes(skipped=1)


def many(rollout: Rollout) -> None:
    """Let as many be under way as may be at most: answer some, each at once."""
    for _ in range(mirror.MAX_UNDER_WAY):
        rollout.send()
        answer(rollout.last())
        answer(rollout.last())
    rollout.traffic.take()
    rollout.router.asked.clear()


def test_the_requests_under_way_are_limited(rollout: Rollout) -> None:
    many(rollout)
    for _ in range(mirror.MAX_UNDER_WAY + 3):
        rollout.send()
        answer(rollout.last())
    under_way = [asked for asked in rollout.router.asked if asked.request.mirrored]
    assert len(under_way) == mirror.MAX_UNDER_WAY
    assert outcomes(rollout) == MirrorOutcomes(skipped=3)
    for asked in under_way:
        answer(asked)
    rollout.send()
    answer(rollout.last())
    answer(rollout.last())
    assert outcomes(rollout) == MirrorOutcomes(compared=mirror.MAX_UNDER_WAY + 1)


def test_the_bytes_under_way_are_limited(rollout: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "MAX_BYTES", 100)
    for _ in range(3):
        rollout.send()
        answer(rollout.last(), output(size=10))
    under_way = [asked for asked in rollout.router.asked if asked.request.mirrored]
    assert len(under_way) == 2 and outcomes(rollout).skipped == 1
    for asked in under_way:
        answer(asked, output(size=10))
    rollout.send()
    answer(rollout.last(), output(size=10))
    assert rollout.last().request.mirrored


class Data(bytearray):
    """A tensor's bytes, which can be watched."""


async def test_tensors_are_released_when_they_are_compared(rollout: Rollout) -> None:
    gc.disable()
    try:
        data = Data(4)
        gone = weakref.ref(data)
        rollout.send()
        answer(rollout.last(), Tensor("y", "FP32", (1,), data))
        rollout.received.clear()
        candidate = rollout.router.asked.pop()
        rollout.router.asked.clear()
        del data
        assert gone() is not None
        answer(candidate, Tensor("y", "FP32", (1,), bytes(4)))
        del candidate
        assert gone() is None
    finally:
        gc.enable()
