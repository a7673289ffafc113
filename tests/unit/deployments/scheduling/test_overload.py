"""What the schedulers of an overloaded model refuse and drop, with estimates that the test sets."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from app.core.errors import InferError
from app.core.observability.statistics import Statistics
from deployments.scheduling.admission import Admission
from deployments.scheduling.base import DirectScheduler, Scheduler
from deployments.scheduling.dynamic.batch_policy import BatchPolicy
from deployments.scheduling.dynamic.policy_queue import PolicyQueue, QueuePolicies
from deployments.scheduling.dynamic.scheduler import DynamicScheduler
from deployments.scheduling.dynamic.serve_batch import ServeBatch
from deployments.scheduling.queue import RequestQueue
from tests.unit.deployments.scheduling.sequence.sequence_bench import SequenceBench, config
from tests.unit.scheduling_fakes import Answers, FakeServeBatch, HeldInstance, offer, pending

MANY = 1 << 30
SECOND = 1_000_000_000
LONG = "max_sequence_idle_microseconds: 60000000\n"


def direct(admission: Admission) -> Scheduler:
    return DirectScheduler(Statistics(), RequestQueue(MANY, MANY, admission))


def dynamic(admission: Admission) -> Scheduler:
    queue = RequestQueue(MANY, MANY, admission)
    return DynamicScheduler(Statistics(), queue, BatchPolicy(1), ServeBatch(1, FakeServeBatch()))


def prioritised(admission: Admission) -> Scheduler:
    queue = PolicyQueue(MANY, MANY, QueuePolicies(levels=2, default_level=2), admission=admission)
    return DynamicScheduler(Statistics(), queue, BatchPolicy(1), ServeBatch(1, FakeServeBatch()))


@pytest.fixture(params=[direct, dynamic, prioritised])
async def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    made: Scheduler = request.param(Admission())
    return made


def in_seconds(seconds: float) -> float:
    return time.monotonic() + seconds


async def executed_once(scheduler: Scheduler, took_s: float) -> HeldInstance:
    """Execute two requests; the first one's duration counts for nothing."""
    (instance,) = offer(scheduler)
    for name in ("first", "second"):
        scheduler.schedule(pending(Answers(), name))
        instance.finish(took_ns=int(took_s * SECOND))
    return instance


async def test_request_is_refused_whose_answer_would_come_too_late(scheduler: Scheduler) -> None:
    instance = await executed_once(scheduler, took_s=100)
    answers = Answers()
    scheduler.schedule(pending(answers, "executes", deadline=in_seconds(1000)))
    scheduler.schedule(pending(answers, "waits", deadline=in_seconds(1000)))
    assert instance.running is not None and scheduler.pending == 1
    assert scheduler.expected_wait_ns == 150 * SECOND
    scheduler.schedule(pending(answers, "in time", deadline=in_seconds(340)))
    with pytest.raises(InferError, match="overloaded") as caught:
        scheduler.schedule(pending(answers, "too late", deadline=in_seconds(340)))
    assert caught.value.retry_after_s == 250
    scheduler.schedule(pending(answers, "no deadline"))
    assert scheduler.admission.refused == {"deadline": 1}
    assert answers.finals == {}


async def test_late_request_is_dropped_rather_than_executed(scheduler: Scheduler) -> None:
    instance = await executed_once(scheduler, took_s=1)
    answers = Answers()
    for name in ("executes", "late", "next"):
        scheduler.schedule(pending(answers, name, deadline=in_seconds(1000)))
    scheduler.admission.execution_ns.value = 100_000 * SECOND
    instance.finish(took_ns=SECOND)
    assert answers.failure("late").retry_after_s > 0
    assert instance.ids[-1] == ["next"], "the last one is executed all the same"


async def test_idle_instance_executes_whatever_is_expected(scheduler: Scheduler) -> None:
    instance = await executed_once(scheduler, took_s=100)
    scheduler.schedule(pending(Answers(), "short", deadline=in_seconds(1)))
    assert instance.ids[-1] == ["short"]


async def test_urgent_requests_wait_only_for_those_before_them() -> None:
    scheduler = prioritised(Admission())
    await executed_once(scheduler, took_s=1)
    answers = Answers()
    for number in range(10):
        scheduler.schedule(pending(answers, str(number)))
    for priority, accepted in ((2, False), (1, True)):
        request = pending(answers, f"priority {priority}", deadline=in_seconds(3))
        request.infer = msgspec.structs.replace(request.infer, priority=priority)
        try:
            scheduler.schedule(request)
        except InferError:
            assert not accepted
        else:
            assert accepted


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SequenceBench]:
    made = SequenceBench(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 1 }"])
def test_new_sequence_is_refused_and_a_begun_one_goes_on(bench: SequenceBench, strategy: str) -> None:
    model = bench.load(config(LONG + strategy, max_batch_size=0))
    bench.infer(1, 0, start=True)
    scheduler = model.scheduler
    scheduler.admission.execution_ns.add(SECOND)
    bench.hold()
    first, _ = bench.submit(1, 1)
    bench.entered()
    waiting, _ = bench.submit(2, 2, start=True, end=True)  # in the backlog
    scheduler._backlog._occupied_ns.add(100 * SECOND)  # type: ignore[attr-defined]
    with pytest.raises(InferError, match="overloaded"):
        bench.submit(3, 3, start=True, deadline=in_seconds(10))
    last, _ = bench.submit(1, 4, end=True, deadline=in_seconds(10))
    bench.free()
    assert [answer.result(60).failure for answer in (first, last, waiting)] == [None] * 3


def test_late_sequences_are_dropped_from_the_backlog(bench: SequenceBench) -> None:
    model = bench.load(config(LONG + "direct {}", max_batch_size=0))
    bench.infer(1, 0, start=True)
    bench.hold()
    first, _ = bench.submit(1, 1, end=True)
    bench.entered()
    late = [bench.submit(n, n, start=True, end=True, deadline=in_seconds(100))[0] for n in range(2, 50)]
    last, _ = bench.submit(50, 50, start=True, end=True, deadline=in_seconds(100))
    model.scheduler.admission.execution_ns.value = 1000 * SECOND
    bench.free()
    failures = [answer.result(60).failure for answer in late]
    assert all(failure is not None and failure.retry_after_s for failure in failures)
    assert first.result(60).failure is None and last.result(60).failure is None
