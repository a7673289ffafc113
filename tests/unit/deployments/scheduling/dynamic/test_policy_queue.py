"""The queue with priorities and timeouts, on a clock of the test's own."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, FailureReason, InferError
from app.core.failures import CANCELLED
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.dynamic.policy_queue import PolicyQueue, QueuePolicies, QueuePolicy
from tests.unit.scheduling_fakes import MS, Answers, pending

MANY = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now


class Bench:
    """A queue, its clock and what was answered."""

    def __init__(self, policies: QueuePolicies, max_requests: int = MANY, max_bytes: int = MANY) -> None:
        self.clock = Clock()
        self.answers = Answers()
        self.queue = PolicyQueue(max_requests, max_bytes, policies, self.clock)

    def add(self, request_id: str, nbytes: int = 4, **fields: Any) -> QueuedRequest:
        made = pending(self.answers, request_id, nbytes=nbytes)
        made.infer = msgspec.structs.replace(made.infer, **fields)
        self.queue.append(made)
        return made

    @property
    def order(self) -> list[str]:
        return [request.infer.id for request in self.queue.head(MANY)]

    def drain(self) -> list[str]:
        taken = []
        while self.queue.tidy(1):
            taken.append(self.queue.popleft().infer.id)
        return taken


def policy(**fields: Any) -> mc.ModelQueuePolicy:
    return mc.ModelQueuePolicy(**fields)


def test_levels_are_served_by_urgency_and_in_order() -> None:
    bench = Bench(QueuePolicies(levels=3, default_level=2))
    for request_id, priority in (("c", 3), ("b", 2), ("unset", 0), ("a", 1), ("beyond", 9), ("a2", 1)):
        bench.add(request_id, priority=priority)
    assert bench.order == ["a", "a2", "b", "unset", "beyond", "c"]
    assert list(bench.queue.head(2)) == [bench.queue.popleft(), bench.queue.popleft()]
    assert bench.drain() == ["b", "unset", "beyond", "c"]
    assert (bench.queue.requests, bench.queue.nbytes) == (0, 0)


def test_each_level_has_its_own_limit() -> None:
    own = {1: QueuePolicy(max_size=1)}
    bench = Bench(QueuePolicies(2, 2, QueuePolicy(max_size=2), own))
    for request_id, priority in (("a", 1), ("b", 2), ("c", 2)):
        bench.add(request_id, priority=priority)
    for priority in (1, 2):
        with pytest.raises(InferError, match="Exceeds maximum queue size") as caught:
            bench.add("refused", priority=priority)
        assert (caught.value.code, caught.value.reason) == (ErrorCode.UNAVAILABLE, FailureReason.REJECTED)
    bench.queue.popleft()
    bench.add("d", priority=1)
    assert bench.order == ["d", "b", "c"]


def test_limits_over_all_levels() -> None:
    bench = Bench(QueuePolicies(2, 1), max_requests=2, max_bytes=10)
    bench.add("a", priority=1)
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        bench.add("too many bytes", nbytes=8, priority=2)
    bench.add("b", priority=2)
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        bench.add("too many", nbytes=1)
    assert bench.order == ["a", "b"]


@pytest.mark.parametrize(
    ("default_us", "override", "asked_us", "timeout_ns"),
    [
        (0, True, 5, 0),  # without a default a request has no say
        (10, True, 5, 5000),
        (10, True, 20, 10_000),
        (10, True, 0, 10_000),
        (10, False, 5, 10_000),
    ],
)
def test_timeout_is_the_default_or_a_shorter_one(
    default_us: int, override: bool, asked_us: int, timeout_ns: int
) -> None:
    read = QueuePolicy.from_config(
        policy(default_timeout_microseconds=default_us, allow_timeout_override=override)
    )
    assert read.timeout_of(asked_us) == timeout_ns


def test_expired_request_is_rejected_at_any_position() -> None:
    woken: list[int] = []
    bench = Bench(QueuePolicies(default=QueuePolicy(timeout_ns=10 * MS, allow_override=True)))
    bench.queue.wake_by = woken.append
    bench.add("a")
    bench.add("short", timeout_us=2000)
    bench.add("b")
    assert woken[-1] == bench.queue.next_expiry_ns == 1 + 2 * MS
    bench.clock.now = 2 * MS
    assert bench.queue.tidy(1) and bench.queue.requests == 3
    bench.clock.now = 1 + 2 * MS
    bench.queue.tidy(1)
    error = bench.answers.failure("short")
    assert (error.code, error.message) == (ErrorCode.UNAVAILABLE, "Request timeout expired")
    assert error.reason is FailureReason.REJECTED
    assert bench.drain() == ["a", "b"]
    assert (bench.queue.next_expiry_ns, bench.queue.nbytes) == (0, 0)


def test_delayed_requests_follow_their_level_and_stay() -> None:
    """As in NVIDIA's test_priority_with_policy: delayed behind level 1, but before level 2."""
    own = {1: QueuePolicy(timeout_ns=10 * MS, delays=True), 2: QueuePolicy(timeout_ns=20 * MS)}
    bench = Bench(QueuePolicies(2, 1, own=own))
    bench.add("early", priority=1)
    bench.add("two", priority=2)
    bench.clock.now = 11 * MS
    bench.add("later", priority=1)
    bench.queue.tidy(1)
    assert bench.order == ["later", "early", "two"]
    bench.clock.now = 100 * MS
    assert bench.drain() == ["early", "later"]
    assert list(bench.answers.finals) == ["two"]


def test_deadline_of_a_client_rejects_even_what_is_delayed() -> None:
    bench = Bench(QueuePolicies(default=QueuePolicy(timeout_ns=1 * MS, delays=True)))
    bench.add("a", deadline=0.005)
    bench.clock.now = 2 * MS
    assert bench.queue.tidy(1)
    bench.clock.now = 6 * MS
    assert not bench.queue.tidy(1)
    assert bench.answers.failure("a").message == "Request timeout expired"


def test_dispatched_request_is_not_kept_by_its_timeout() -> None:
    bench = Bench(QueuePolicies(default=QueuePolicy(timeout_ns=1000 * MS)))
    for number in range(1000):
        bench.add(str(number))
        bench.queue.popleft()
    tickets = bench.queue._tickets
    assert len(tickets) < 100 and all(ticket[2] is None for ticket in tickets)
    assert bench.queue.next_expiry_ns == 0 and not tickets


def test_oldest_of_all_levels() -> None:
    bench = Bench(QueuePolicies(2, 1))
    first = bench.add("first", priority=2)
    bench.add("second", priority=1)
    assert bench.queue.oldest_ns == first.arrival_ns
    bench.drain()
    assert bench.queue.oldest_ns == 0


@pytest.mark.parametrize(
    ("batching", "plain"),
    [
        (mc.ModelDynamicBatching(), True),
        (mc.ModelDynamicBatching(default_queue_policy=policy(max_queue_size=3)), True),
        (mc.ModelDynamicBatching(priority_levels=1, default_priority_level=1), True),
        (mc.ModelDynamicBatching(priority_levels=2, default_priority_level=1), False),
        (mc.ModelDynamicBatching(default_queue_policy=policy(default_timeout_microseconds=3)), False),
    ],
)
def test_plain_queue_is_used_without_priorities_and_timeouts(
    batching: mc.ModelDynamicBatching, plain: bool
) -> None:
    assert QueuePolicies.from_config(batching).plain is plain


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 4), st.integers(0, 8), st.sampled_from([0, 0, 3, 12])),
        st.tuples(st.just("pop"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 8), st.just(0), st.just(0)),
    ),
    max_size=60,
)
POLICY = st.builds(QueuePolicy, st.integers(0, 4), st.sampled_from([0, 5 * MS]), st.booleans(), st.booleans())


@settings(max_examples=200, deadline=None)
@given(ACTIONS, POLICY, POLICY, st.integers(1, 6))
def test_any_use_loses_no_request_and_keeps_the_limits(
    actions: list[tuple[str, int, int, int]], default: QueuePolicy, first: QueuePolicy, limit: int
) -> None:
    policies = QueuePolicies(3, 2, default, {1: first})
    bench = Bench(policies, max_requests=limit, max_bytes=20)
    queue, inside, left = bench.queue, dict[str, QueuedRequest](), list[QueuedRequest]()
    for number, (verb, value, nbytes, timeout_ms) in enumerate(actions):
        if verb == "add":
            try:
                inside[str(number)] = bench.add(
                    str(number), nbytes, priority=value, timeout_us=timeout_ms * 1000
                )
            except InferError:
                assert inside, "refused by an empty queue"
        elif verb == "pop" and queue.tidy(1):
            expected = queue.head(1)[0]
            assert queue.popleft() is expected
            left.append(inside.pop(expected.infer.id))
        elif verb == "cancel" and inside:
            given_up = inside.pop(list(inside)[value % len(inside)])
            given_up.fail(CANCELLED)
            queue.cancel(given_up)
        elif verb == "wait":
            bench.clock.now += value * MS
        queue.tidy(1)
        inside = {key: request for key, request in inside.items() if not request.answered}
        check(bench, inside, policies, limit)
    assert not any(request.answered for request in left), "answered after it left the queue"


def check(bench: Bench, inside: dict[str, QueuedRequest], policies: QueuePolicies, limit: int) -> None:
    queue = bench.queue
    order = list(queue.head(MANY))
    assert {request.infer.id for request in order} == set(inside) and len(order) == len(
        inside
    ) == queue.requests
    assert queue.nbytes == sum(request.nbytes for request in order)
    assert queue.requests <= limit and (queue.requests < 2 or queue.nbytes <= 20)
    levels = [policies.level(request.infer.priority) for request in order]
    assert levels == sorted(levels)
    for level in set(levels):
        there = [request for request, own in zip(order, levels, strict=True) if own == level]
        in_time = [int(request.infer.id) for request in there if request in request.level.waiting]
        assert in_time == sorted(in_time), "not first come first served"
        assert in_time == [int(request.infer.id) for request in there][: len(in_time)], (
            "delayed before others"
        )
        most = policies.policy(level).max_size
        assert not most or len(there) <= most
