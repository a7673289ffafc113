"""The queue of a model whose `dynamic_batching` has priorities or timeouts."""

import heapq
import time
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.queue import TIMEOUT, RequestQueue, queue_full

Requests = OrderedDict[QueuedRequest, None]

_Ticket = list[Any]
"""[expires (ns), number, pending or None once it left the queue, whether it is rejected then]."""


class QueuePolicy(NamedTuple):
    """A `ModelQueuePolicy`; 0 means no limit and no timeout."""

    max_size: int = 0
    timeout_ns: int = 0
    allow_override: bool = False
    delays: bool = False

    @classmethod
    def of(cls, policy: mc.ModelQueuePolicy) -> "QueuePolicy":
        """Read a configuration's policy."""
        return cls(
            policy.max_queue_size,
            policy.default_timeout_microseconds * 1000,
            policy.allow_timeout_override,
            policy.timeout_action == mc.ModelQueuePolicy.DELAY,
        )

    def timeout_of(self, asked_us: int) -> int:
        """The timeout (ns) of a request that asks for one of `asked_us`, 0 for none.

        As in Triton a request may only shorten the default: where there is none, it has no say.
        """
        asked_ns = asked_us * 1000
        return asked_ns if self.allow_override and 0 < asked_ns < self.timeout_ns else self.timeout_ns


class QueuePolicies(NamedTuple):
    """The levels of a queue, 1 the most urgent (`levels` 0: no priorities), and the policy of each."""

    levels: int = 0
    default_level: int = 0
    default: QueuePolicy = QueuePolicy()
    own: dict[int, QueuePolicy] = {}

    @classmethod
    def of(cls, batching: mc.ModelDynamicBatching) -> "QueuePolicies":
        """Read a configuration's policies."""
        own = {level: QueuePolicy.of(policy) for level, policy in batching.priority_queue_policy.items()}
        return cls(
            batching.priority_levels,
            batching.default_priority_level if batching.priority_levels else 0,
            QueuePolicy.of(batching.default_queue_policy),
            own if batching.priority_levels else {},
        )

    @property
    def plain(self) -> bool:
        """Whether a `RequestQueue` does: one level, no timeout."""
        return self.levels < 2 and not self.policy(self.default_level).timeout_ns

    def level(self, priority: int) -> int:
        """The level of a request: an unset priority, or one that does not exist, is the default."""
        return priority if 0 < priority <= self.levels else self.default_level

    def policy(self, level: int) -> QueuePolicy:
        """The policy of a level."""
        return self.own.get(level, self.default)


class Level:
    """The requests of one priority: those in time, then those whose timeout delayed them."""

    __slots__ = ("delayed", "number", "policy", "waiting")

    def __init__(self, number: int, policy: QueuePolicy) -> None:
        self.number = number
        self.policy = policy
        self.waiting: Requests = OrderedDict()
        self.delayed: Requests = OrderedDict()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.delayed)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return chain(self.waiting, self.delayed)

    def remove(self, pending: QueuedRequest) -> None:
        """Take a request out, wherever it is."""
        del (self.waiting if pending in self.waiting else self.delayed)[pending]


class PolicyQueue(RequestQueue):
    """Requests by priority, first come first served within a level, each with its timeout.

    A timeout of action REJECT, and a client's deadline, answer the request when they are over. Action DELAY
    puts it behind what is in time at its own and more urgent levels, as Triton's queue does
    (src/scheduler_utils.cc), and lets it wait from then on.

    Args:
        max_requests: limit over all levels; each level may have a lower one of its own.
        max_bytes: limit of the inputs' bytes over all levels.
        policies: the levels.
        clock: nanoseconds of `time.monotonic_ns`.
    """

    in_order = False

    def __init__(
        self,
        max_requests: int,
        max_bytes: int,
        policies: QueuePolicies,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(max_requests, max_bytes)
        self._policies = policies
        self._clock = clock
        self._insert = self._enter
        self._levels: dict[int, Level] = {}
        self._order: list[int] = []
        self._tickets: list[_Ticket] = []
        self._numbers = count()

    def __iter__(self) -> Iterator[QueuedRequest]:
        """The requests in the order in which they will leave."""
        return chain.from_iterable(self._levels[number] for number in self._order)

    def head(self, size: int) -> Sequence[QueuedRequest]:
        return list(islice(self, size))

    @property
    def oldest_ns(self) -> int:
        firsts = (next(iter(part)) for level in self._levels.values() for part in _parts(level))
        return min((pending.arrival_ns for pending in firsts), default=0)

    @property
    def next_expiry_ns(self) -> int:
        tickets = self._tickets
        while tickets and tickets[0][2] is None:
            heapq.heappop(tickets)
        return int(tickets[0][0]) if tickets else 0

    def append(self, pending: QueuedRequest) -> None:
        level = self._levels.get(self._policies.level(pending.infer.priority))
        if level is not None and 0 < level.policy.max_size <= len(level):
            raise queue_full(pending.infer.id)
        super().append(pending)

    def popleft(self) -> QueuedRequest:
        level = self._levels[self._order[0]]
        pending = next(iter(level))
        self._leave(pending)
        return pending

    def cancel(self, pending: QueuedRequest) -> None:
        self._leave(pending)

    def tidy(self, count: int) -> bool:
        if self._tickets:
            self._expire()
        return self._size > 0

    def _enter(self, pending: QueuedRequest) -> None:
        number = self._policies.level(pending.infer.priority)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Level(number, self._policies.policy(number))
            insort(self._order, number)
        level.waiting[pending] = None
        pending.level = level
        pending.tickets = self._issue(pending, level.policy)

    def _issue(self, pending: QueuedRequest, policy: QueuePolicy) -> tuple[_Ticket, ...]:
        timeout_ns = policy.timeout_of(pending.infer.timeout_us)
        deadline = pending.infer.deadline
        if not timeout_ns and not deadline:
            return ()
        issued: list[_Ticket] = []
        if timeout_ns:
            expires = self._clock() + timeout_ns
            issued.append([expires, next(self._numbers), pending, not policy.delays])
        if deadline:
            issued.append([int(deadline * 1e9), next(self._numbers), pending, True])
        if len(self._tickets) > 4 * self._size + 64:  # mostly of requests that left in time
            self._tickets = [ticket for ticket in self._tickets if ticket[2] is not None]
            heapq.heapify(self._tickets)
        for ticket in issued:
            heapq.heappush(self._tickets, ticket)
        if self.wake_by is not None:
            self.wake_by(self._tickets[0][0])
        return tuple(issued)

    def _expire(self) -> None:
        now = self._clock()
        while 0 < self.next_expiry_ns <= now:
            _, _, pending, rejected = heapq.heappop(self._tickets)
            if rejected:
                self._leave(pending)
                pending.fail(TIMEOUT)
            else:
                del pending.level.waiting[pending]
                pending.level.delayed[pending] = None

    def _leave(self, pending: QueuedRequest) -> None:
        level: Level = pending.level
        level.remove(pending)
        for ticket in pending.tickets:
            ticket[2] = None
        self._forget(pending)
        if not level:
            del self._levels[level.number]
            del self._order[bisect_left(self._order, level.number)]


def _parts(level: Level) -> list[Requests]:
    return [part for part in (level.waiting, level.delayed) if part]
