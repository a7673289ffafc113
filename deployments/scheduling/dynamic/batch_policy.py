"""How a batch is formed from the head of a queue: a pure function of the queue and the clock."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar


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


_LONE: Final = BatchDecision(1, 1, 0, "idle")


def decide_batch(
    policy: BatchPolicy, queue: Sequence[Q], now_ns: int, includes: Callable[[Q], bool] | None = None
) -> BatchDecision:
    """Decide which requests at the head of the queue form a batch.

    As Triton's dynamic batcher: take requests in order while they fit and agree in shape. The largest
    preferred size reached is released at once, unless the oldest request has waited `max_delay_ns`; then,
    or when nothing more can join, all of them are; otherwise wait. A custom strategy (`includes`)
    may exclude any request but the first.
    """
    first, sizes = queue[0], policy.preferred or (policy.max_rows,)
    if len(queue) == 1 == first.rows < sizes[0] and includes is None and not policy.max_delay_ns:
        return _LONE  # by far the most frequent
    rows = count = preferred_rows = preferred_count = 0
    closed = False
    for request in queue:
        total = rows + request.rows
        if count and total > sizes[-1] and not preferred_count:
            preferred_rows, preferred_count = rows, count
        fits = total <= policy.max_rows and request.shapes == first.shapes
        if not fits or (includes is not None and not includes(request) and count):
            closed = True
            break
        rows = total
        count += 1
        if rows in policy.preferred:
            preferred_rows, preferred_count = rows, count
        if rows == policy.max_rows:
            closed = True
            break
    until_ns = _until_ns(policy, queue, count)
    if preferred_count and not (until_ns and now_ns >= until_ns):
        return BatchDecision(preferred_count, preferred_rows, 0, "preferred")
    if closed or rows >= sizes[-1]:
        return BatchDecision(count, rows, 0, "full")
    return _decide_by_age(count, rows, until_ns, now_ns)


def _decide_by_age(count: int, rows: int, until_ns: int, now_ns: int) -> BatchDecision:
    """Decide about requests that others may join until `until_ns`; 0 for not at all."""
    if now_ns >= until_ns:
        return BatchDecision(count, rows, 0, "delay" if until_ns else "idle")
    return BatchDecision(0, wait_until_ns=until_ns)


def _until_ns(policy: BatchPolicy, queue: Sequence[Queued], count: int) -> int:
    """Return when the oldest of the first `count` has waited enough; 0 where none has to wait."""
    if not policy.max_delay_ns:
        return 0
    # With priorities the oldest need not be the first.
    return min([request.arrival_ns for request in islice(queue, count)]) + policy.max_delay_ns
