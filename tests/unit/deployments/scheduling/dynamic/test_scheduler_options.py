"""What a dynamic batcher may be told beyond sizes and delay: timeouts, order, strategies, the test hook."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from app.core.errors import FailureReason
from app.core.observability.statistics import Statistics
from app.core.tensors import InferResponse
from backends.base import Request
from backends.strategy import BatchStrategy
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.delays import backlog_delay_scheduler, delay_scheduler
from deployments.scheduling.dynamic.batch_policy import BatchPolicy
from deployments.scheduling.dynamic.ordering import ResponseOrder
from deployments.scheduling.dynamic.policy_queue import PolicyQueue, QueuePolicies, QueuePolicy
from deployments.scheduling.dynamic.scheduler import DynamicScheduler
from deployments.scheduling.dynamic.serve_batch import ServeBatch
from deployments.scheduling.queue import RequestQueue
from tests.unit.scheduling_fakes import MS, Answers, FakeServeBatch, offer, pending
from tests.waiting import until

MANY = 1 << 20


def dynamic(
    queue: RequestQueue | None = None, max_rows: int = 4, max_delay_ns: int = 0, **options: Any
) -> DynamicScheduler:
    policy = BatchPolicy(max_rows, (), max_delay_ns)
    serve_batch = ServeBatch(max_rows, FakeServeBatch())
    queue = RequestQueue(MANY, MANY) if queue is None else queue
    return DynamicScheduler(Statistics(), queue, policy, serve_batch, **options)


@pytest.fixture
def answers() -> Answers:
    return Answers()


def request(answers: Answers, request_id: str, nbytes: int = 4, **fields: Any) -> QueuedRequest:
    made = pending(answers, request_id, nbytes=nbytes)
    made.infer = msgspec.structs.replace(made.infer, **fields)
    return made


def timed(timeout_ms: int, **fields: Any) -> PolicyQueue:
    policy = QueuePolicy(timeout_ns=timeout_ms * MS, **fields)
    return PolicyQueue(MANY, MANY, QueuePolicies(default=policy))


async def test_rejected_at_its_timeout_while_the_instance_is_busy(answers: Answers) -> None:
    scheduler = dynamic(timed(1000, allow_override=True))
    (instance,) = offer(scheduler)
    for request_id, timeout_us in (("running", 0), ("a", 0), ("short", 5000)):
        scheduler.schedule(request(answers, request_id, timeout_us=timeout_us))
    await until(lambda: "short" in answers.finals)
    assert scheduler.pending == 1, "the one before it still waits"
    await until(lambda: "a" in answers.finals)
    assert answers.failure("a").reason is FailureReason.REJECTED
    instance.finish()
    assert instance.ids == [["running"]] and scheduler.pending == 0


async def test_timeout_while_a_batch_waits_for_more(answers: Answers) -> None:
    scheduler = dynamic(timed(5), max_delay_ns=60_000 * MS)
    (instance,) = offer(scheduler)
    scheduler.schedule(request(answers, "a"))
    await until(lambda: "a" in answers.finals)
    assert instance.ids == [] and scheduler.pending == 0


async def test_priorities_share_batches_from_the_top(answers: Answers) -> None:
    scheduler = dynamic(PolicyQueue(MANY, MANY, QueuePolicies(2, 2)), max_rows=2)
    (instance,) = offer(scheduler)
    for request_id, priority in (("running", 0), ("c", 2), ("d", 0), ("a", 1), ("b", 1), ("a2", 1)):
        scheduler.schedule(request(answers, request_id, priority=priority))
    while instance.running:
        instance.finish()
    assert instance.ids == [["running"], ["a", "b"], ["a2", "c"], ["d"]]


async def test_delay_counts_from_the_oldest_whatever_its_priority(answers: Answers) -> None:
    scheduler = dynamic(PolicyQueue(MANY, MANY, QueuePolicies(2, 2)), max_delay_ns=20 * MS)
    (instance,) = offer(scheduler)
    first = request(answers, "low", priority=2)
    first.arrival_ns -= 30 * MS
    scheduler.schedule(request(answers, "high", priority=1))
    assert instance.ids == []
    scheduler.schedule(first)
    assert instance.ids == [["high", "low"]]


async def test_responses_are_delivered_in_the_order_of_arrival() -> None:
    sent: list[tuple[str, str]] = []

    class Delivering(Answers):
        """Calls the sink at once, as the loop does."""

        def put(self, request: QueuedRequest, response: InferResponse) -> None:
            request.sink(response)

    def sink_of(request_id: str) -> Callable[[InferResponse], None]:
        return lambda response: sent.append(
            (request_id, response.failure.message if response.failure else "")
        )

    scheduler = dynamic(max_rows=2, ordered=MANY)
    first, second = offer(scheduler, 2)
    answers = Delivering()
    for request_id in "abcde":
        made = request(answers, request_id)
        made.sink = sink_of(request_id)
        scheduler.schedule(made)
    taken = [first, second] if first.ids == [["a"]] else [second, first]
    taken[1].finish(failing=["b"])
    assert sent == [], "b is done, but a is not"
    taken[1].finish()
    taken[0].finish()
    assert sent == [("a", ""), ("b", "it broke"), ("c", ""), ("d", "")]
    taken[1].finish()
    assert sent[4:] == [("e", "")]


async def test_order_is_limited_and_resumes(answers: Answers) -> None:
    scheduler = dynamic(max_rows=1, ordered=2)
    first, second = offer(scheduler, 2)
    requests = [request(answers, request_id) for request_id in "abc"]
    for made in requests:
        scheduler.schedule(made)
    late = second if second.ids == [["b"]] else first
    requests[1].sink(InferResponse())
    late.finish()
    assert scheduler.pending == 1, "two places are taken: a's and that of b's response"
    requests[0].sink(InferResponse())
    assert scheduler.pending == 0


def test_undeliverable_response_does_not_block_ordered_ones(answers: Answers) -> None:
    def broken(response: InferResponse) -> None:
        raise RuntimeError("the connection is gone")

    sent: list[InferResponse] = []
    order = ResponseOrder(MANY, lambda: None)
    a, b = request(answers, "a"), request(answers, "b")
    a.sink, b.sink = broken, sent.append
    order.track(a)
    order.track(b)
    b.sink(InferResponse(final=False))
    b.sink(InferResponse())
    a.sink(InferResponse())
    assert [response.final for response in sent] == [False, True]


class Volume(BatchStrategy):
    """At most 10 bytes of input a batch."""

    def __init__(self) -> None:
        self.records: list[str] = []

    def batch_initialize(self) -> list[int]:
        self.records.append("made")
        return [10]

    def batch_finalize(self, batch: list[int]) -> None:
        self.records.append("done")

    def batcher_finalize(self) -> None:
        self.records.append("closed")

    def include_request(self, request: Request, batch: list[int]) -> bool:
        if request.infer.id == "bad":
            raise ValueError("a defect of the strategy")
        batch[0] -= sum(len(tensor.data) for tensor in request.infer.inputs)
        return batch[0] >= 0


async def test_custom_strategy_decides_which_requests_join(answers: Answers) -> None:
    strategy = Volume()
    scheduler = dynamic(max_rows=8, strategy=strategy)
    (instance,) = offer(scheduler)
    sizes = {"first": 1, "a": 4, "b": 6, "c": 6, "huge": 50, "d": 5, "e": 5, "bad": 1, "f": 1}
    for request_id, nbytes in sizes.items():
        scheduler.schedule(request(answers, request_id, nbytes))
    while instance.running:
        instance.finish()
    assert instance.ids == [["first"], ["a", "b"], ["c"], ["huge"], ["d", "e"], ["bad", "f"]]
    assert strategy.records == ["made", "done"] * 6
    scheduler.close()
    assert strategy.records[-1] == "closed"


async def test_start_threshold_applies_once(answers: Answers) -> None:
    scheduler = dynamic(start_threshold=3)
    (instance,) = offer(scheduler)
    for request_id in "ab":
        scheduler.schedule(request(answers, request_id))
    assert instance.ids == []
    scheduler.schedule(request(answers, "c"))
    assert instance.ids == [["a", "b", "c"]]
    instance.finish()
    scheduler.schedule(request(answers, "d"))
    assert instance.ids[-1] == ["d"]


@pytest.mark.parametrize(("text", "number"), [("12", 12), (" 3x", 3), ("", 0), ("no", 0), ("-4", 0)])
def test_hooks_parse_numbers_as_c_does(monkeypatch: pytest.MonkeyPatch, text: str, number: int) -> None:
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", text)
    monkeypatch.setenv("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", text)
    assert (delay_scheduler(), backlog_delay_scheduler()) == (number, number)


async def test_releases_are_counted_by_reason(answers: Answers) -> None:
    scheduler = dynamic(max_rows=2)
    (instance,) = offer(scheduler)
    assert scheduler.queue_age_ns == 0
    for request_id in "abcd":
        scheduler.schedule(request(answers, request_id))
    assert 0 < scheduler.queue_age_ns < 10**10
    while instance.running:
        instance.finish()
    assert scheduler._statistics.counters.releases == {"idle": 2, "full": 1}
