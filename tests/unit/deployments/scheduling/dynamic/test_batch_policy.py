"""Batch formation: a table of queues and what they make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.scheduling.dynamic.batch_policy import BatchDecision, BatchPolicy, decide_batch

MS = 1_000_000


class Item:
    def __init__(self, rows: int = 1, arrival_ms: int = 0, shapes: tuple[object, ...] | None = None) -> None:
        self.rows = rows
        self.arrival_ns = arrival_ms * MS
        self.shapes = shapes


def queue(*rows: int) -> list[Item]:
    return [Item(r) for r in rows]


CASES = [
    # policy, queue, now (ms), requests released, rows, reason
    (BatchPolicy(8, (8,)), queue(1), 0, 1, 1, "idle"),
    (BatchPolicy(8, (8,)), queue(1, 1, 1), 0, 3, 3, "idle"),
    (BatchPolicy(8, (8,)), queue(*[1] * 12), 0, 8, 8, "preferred"),
    (BatchPolicy(8, (8,)), queue(3, 3, 3), 0, 2, 6, "preferred"),  # a third would exceed every preferred size
    (BatchPolicy(8, (4, 8)), queue(*[1] * 6), 0, 4, 4, "preferred"),
    (BatchPolicy(8, (4, 8)), queue(*[1] * 9), 0, 8, 8, "preferred"),
    (BatchPolicy(8, (4,)), queue(*[1] * 6), 0, 4, 4, "preferred"),
    (BatchPolicy(8), queue(8, 1), 0, 1, 8, "full"),
    (BatchPolicy(8, (), 5 * MS), queue(1, 2), 5, 2, 3, "delay"),
    (BatchPolicy(8, (4,), 5 * MS), queue(*[1] * 6), 5, 6, 6, "full"),
    (BatchPolicy(8, (4,), 5 * MS), queue(*[1] * 6), 1, 4, 4, "preferred"),
]


@pytest.mark.parametrize(("policy", "items", "now_ms", "size", "rows", "reason"), CASES)
def test_release(
    policy: BatchPolicy, items: list[Item], now_ms: int, size: int, rows: int, reason: str
) -> None:
    formation = decide_batch(policy, items, now_ms * MS)
    assert formation == BatchDecision(size, rows, 0, reason)


def test_waits_for_the_delay_of_the_oldest() -> None:
    policy = BatchPolicy(8, (8,), 5 * MS)
    assert decide_batch(policy, [Item(1, 10), Item(1, 12)], 13 * MS) == BatchDecision(
        0, wait_until_ns=15 * MS
    )


def test_other_shape_closes_the_batch() -> None:
    items = [Item(shapes=((2,),)), Item(shapes=((2,),)), Item(shapes=((3,),)), Item(shapes=((2,),))]
    assert decide_batch(BatchPolicy(8, (8,), 5 * MS), items, 0) == BatchDecision(2, 2, 0, "full")


def test_never_more_rows_than_the_maximum() -> None:
    for first in range(1, 9):
        for second in range(1, 9):
            formation = decide_batch(BatchPolicy(8), queue(first, second, 1), 0)
            assert 1 <= formation.rows <= 8


@given(
    st.sampled_from([BatchPolicy(8, sizes, ns) for sizes in ((), (8,), (4,), (2, 4)) for ns in (0, MS)]),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2), st.sampled_from([(1,), (2,)])), min_size=1),
    st.integers(0, 3),
)
def test_a_lone_request_is_decided_about_as_others_are(
    policy: BatchPolicy, items: list[tuple[int, int, tuple[int, ...]]], now_ms: int
) -> None:
    queued = [Item(*item) for item in items]
    long_way = decide_batch(policy, queued, now_ms * MS, lambda _: True)
    assert decide_batch(policy, queued, now_ms * MS) == long_way
