"""How a batch is formed from the head of a queue: a pure function of the queue and the clock."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar


class Queued(Protocol):
    """A queued request as the decision sees it; times are `time.monotonic_ns`."""

    rows: int
    shapes: tuple[object, ...] | None
    arrival_ns: int


Q = TypeVar("Q", bound=Queued)


class BatchPolicy(NamedTuple):
    """The `dynamic_batching` settings that decide a release.

    `preferred` are batch sizes (rows) in ascending order; `max_delay_ns` counts from the oldest request.
    """

    max_rows: int
    preferred: tuple[int, ...] = ()
    max_delay_ns: int = 0


class BatchDecision(NamedTuple):
    """Release `size` requests with `rows` rows now, or wait until `wait_until_ns` for more (size 0)."""

    size: int
    rows: int = 0
    wait_until_ns: int = 0
    reason: str = ""


def decide_batch(
    policy: BatchPolicy, queue: Sequence[Q], now_ns: int, includes: Callable[[Q], bool] | None = None
) -> BatchDecision:
    """Decide which requests at the head of the queue form a batch.

    As Triton's dynamic batcher: take requests in order while they fit and agree in shape. The largest
    preferred size reached is released at once, unless the oldest request has waited `max_delay_ns`; then,
    or when nothing more can join, all of them are; otherwise wait. A custom strategy (`includes`)
    may exclude any request but the first.
    """
    rows = count = preferred_rows = preferred_count = 0
    largest = policy.preferred[-1] if policy.preferred else policy.max_rows
    shapes = queue[0].shapes
    closed = False
    for request in queue:
        if count and rows + request.rows > largest and not preferred_count:
            preferred_rows, preferred_count = rows, count
        fits = rows + request.rows <= policy.max_rows and request.shapes == shapes
        if not fits or (includes is not None and not includes(request) and count):
            closed = True
            break
        rows += request.rows
        count += 1
        if rows in policy.preferred:
            preferred_rows, preferred_count = rows, count
        if rows == policy.max_rows:
            closed = True
            break
    until_ns = _oldest_ns(queue, count) + policy.max_delay_ns if policy.max_delay_ns else 0
    waited = now_ns >= until_ns
    if preferred_count and not (policy.max_delay_ns and waited):
        return BatchDecision(preferred_count, preferred_rows, 0, "preferred")
    if closed or rows >= largest:
        return BatchDecision(count, rows, 0, "full")
    if waited:
        return BatchDecision(count, rows, 0, "delay" if policy.max_delay_ns else "idle")
    return BatchDecision(0, wait_until_ns=until_ns)


def _oldest_ns(queue: Sequence[Queued], count: int) -> int:
    """Return the earliest arrival of the first `count`; with priorities that need not be the first."""
    return min([request.arrival_ns for request in islice(queue, count)])
