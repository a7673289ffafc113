"""The queue of a model whose `dynamic_batching` has priorities or timeouts."""

import heapq
import time
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import Failure
from app.core.failures import TIMEOUT
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.admission import Admission
from deployments.scheduling.queue import RequestQueue, queue_full

Requests = OrderedDict[QueuedRequest, None]

_Ticket = list[Any]
"""[expires (ns), number, request or None once it has left the queue, whether it is rejected then]."""


class QueuePolicy(NamedTuple):
    """A `ModelQueuePolicy`; 0 means no limit and no timeout."""

    max_size: int = 0
    timeout_ns: int = 0
    allow_override: bool = False
    delays: bool = False

    @classmethod
    def from_config(cls, policy: mc.ModelQueuePolicy) -> "QueuePolicy":
        """Read one policy of a configuration."""
        return cls(
            policy.max_queue_size,
            policy.default_timeout_microseconds * 1000,
            policy.allow_timeout_override,
            policy.timeout_action == mc.ModelQueuePolicy.DELAY,
        )

    def timeout_of(self, asked_us: int) -> int:
        """Return the timeout (ns) of a request that asks for one of `asked_us`, 0 for none."""
        # As in Triton a request may shorten the default, and not set one where there is none.
        asked_ns = asked_us * 1000
        return asked_ns if self.allow_override and 0 < asked_ns < self.timeout_ns else self.timeout_ns


class QueuePolicies(NamedTuple):
    """The levels of a queue, 1 the most urgent (`levels` 0: no priorities), and the policy of each."""

    levels: int = 0
    default_level: int = 0
    default: QueuePolicy = QueuePolicy()
    own: dict[int, QueuePolicy] = {}

    @classmethod
    def from_config(cls, batching: mc.ModelDynamicBatching) -> "QueuePolicies":
        """Read the policies of a configuration."""
        own = {
            level: QueuePolicy.from_config(policy) for level, policy in batching.priority_queue_policy.items()
        }
        return cls(
            batching.priority_levels,
            batching.default_priority_level if batching.priority_levels else 0,
            QueuePolicy.from_config(batching.default_queue_policy),
            own if batching.priority_levels else {},
        )

    @property
    def plain(self) -> bool:
        """Whether a `RequestQueue` is enough: one level, no timeout."""
        return self.levels < 2 and not self.policy(self.default_level).timeout_ns

    def level(self, priority: int) -> int:
        """Return the level of a request; an unset or unknown priority means the default level."""
        return priority if 0 < priority <= self.levels else self.default_level

    def policy(self, level: int) -> QueuePolicy:
        return self.own.get(level, self.default)


class Level:
    """The requests of one priority: those in time, then those delayed by their timeout."""

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

    def remove(self, request: QueuedRequest) -> None:
        """Remove a request from either part."""
        del (self.waiting if request in self.waiting else self.delayed)[request]


class PolicyQueue(RequestQueue):
    """Requests by priority, first come first served within a level, each with its timeout.

    When a timeout of action REJECT or a client's deadline ends, the request fails. Action DELAY moves it
    behind the requests in time of its own and more urgent levels, as Triton's queue does
    (src/scheduler_utils.cc), where it waits without a timeout.

    Args:
        max_requests: limit over all levels; each level may have a lower one of its own.
        max_bytes: limit of the inputs' bytes over all levels.
        policies: the levels.
        clock: nanoseconds of `time.monotonic_ns`.
        admission: decides by the wait.
    """

    in_order = False

    def __init__(
        self,
        max_requests: int,
        max_bytes: int,
        policies: QueuePolicies,
        clock: Callable[[], int] = time.monotonic_ns,
        admission: Admission | None = None,
    ) -> None:
        super().__init__(max_requests, max_bytes, admission or Admission(clock=clock))
        self.admission.heeds_timeouts = False  # the policies say what they mean
        self._policies = policies
        self._clock = clock
        self._levels: dict[int, Level] = {}
        self._order: list[int] = []
        self._tickets: list[_Ticket] = []
        self._numbers = count()

    def __iter__(self) -> Iterator[QueuedRequest]:
        """Iterate over the requests in the order in which they will be dispatched."""
        return chain.from_iterable(self._levels[number] for number in self._order)

    def head(self, size: int) -> Sequence[QueuedRequest]:
        return list(islice(self, size))

    @property
    def oldest_ns(self) -> int:
        firsts = (next(iter(part)) for level in self._levels.values() for part in _parts(level))
        return min((request.arrival_ns for request in firsts), default=0)

    @property
    def next_expiry_ns(self) -> int:
        tickets = self._tickets
        while tickets and tickets[0][2] is None:
            heapq.heappop(tickets)
        return int(tickets[0][0]) if tickets else 0

    def append(self, request: QueuedRequest) -> None:
        number = self._policies.level(request.infer.priority)
        level = self._levels.get(number)
        if level is not None and 0 < level.policy.max_size <= len(level):
            raise queue_full(request.infer.id)
        self.check(request, self.admission.wait_ns(self._ahead(number)))
        self.acquire(request)
        self._insert(request)

    def popleft(self) -> QueuedRequest:
        level = self._levels[self._order[0]]
        request = next(iter(level))
        self._remove(request)
        return request

    def take(self, count: int) -> list[QueuedRequest]:
        return [self.popleft() for _ in range(count)]

    def cancel(self, request: QueuedRequest) -> None:
        self._remove(request)

    def tidy(self, count: int) -> bool:
        if self._tickets:
            self._expire()
        if self.is_limited:
            self._drop_late(count)
        return self.requests > 0

    def _insert(self, request: QueuedRequest) -> None:
        number = self._policies.level(request.infer.priority)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Level(number, self._policies.policy(number))
            insort(self._order, number)
        level.waiting[request] = None
        request.level = level
        request.tickets = self._issue(request, level.policy)

    def _issue(self, request: QueuedRequest, policy: QueuePolicy) -> tuple[_Ticket, ...]:
        timeout_ns = policy.timeout_of(request.infer.timeout_us)
        deadline = request.infer.deadline
        if not timeout_ns and not deadline:
            return ()
        issued: list[_Ticket] = []
        if timeout_ns:
            expires = self._clock() + timeout_ns
            issued.append([expires, next(self._numbers), request, not policy.delays])
        if deadline:
            issued.append([int(deadline * 1e9), next(self._numbers), request, True])
        if len(self._tickets) > 4 * self.requests + 64:  # mostly those of requests that have left the queue
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
            _, _, request, rejected = heapq.heappop(self._tickets)
            if rejected:
                self._remove(request)
                request.fail(TIMEOUT)
            else:
                del request.level.waiting[request]
                request.level.delayed[request] = None

    def _ahead(self, number: int) -> int:
        """Return how many requests are dispatched before one that joins a level now."""
        return sum(len(self._levels[other]) for other in self._order if other <= number)

    def _drop_late(self, count: int) -> None:
        """Drop requests until none of the first `count` is too late."""
        while late := self._late(count):
            request, failure = late
            self._remove(request)
            request.fail(failure)

    def _late(self, count: int) -> tuple[QueuedRequest, Failure] | None:
        for request in self.head(count):
            if failure := self.admission.lateness(request, self.requests - 1):
                return request, failure
        return None

    def _remove(self, request: QueuedRequest) -> None:
        level: Level = request.level
        level.remove(request)
        for ticket in request.tickets:
            ticket[2] = None
        self.release(request)
        if not level:
            del self._levels[level.number]
            del self._order[bisect_left(self._order, level.number)]


def _parts(level: Level) -> list[Requests]:
    return [part for part in (level.waiting, level.delayed) if part]
