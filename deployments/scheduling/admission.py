"""Admission control: refuses requests whose expected wait is longer than their clients will wait.

First come first served alone fails under overload: the queue grows until every request is executed when its
client is about to give up, or has. So a request that cannot be answered in time is refused when it arrives
and, where the estimate was wrong, dropped before it is executed. Decisions depend on what was recorded and on
the clock; nothing is done here.
"""

import time
from collections.abc import Callable
from typing import Final

from app.core.errors import ErrorCode, Failure, FailureReason
from app.core.observability.statistics import MovingMean
from deployments.execution.queued_request import QueuedRequest

SAFETY: Final = 0.75
"""A request is refused if its answer is expected after this share of its time: estimates err."""

LATEST: Final = 0.9
"""A queued request is dropped if its answer is expected after this share: the answer has its way to go."""

_RECENT: Final = 16
"""The last client that left has a weight of 1/16."""

_ABANDONED: Final = 0.5
"""Share of requests whose clients left before the answer from which the model counts as overloaded."""
_NORMAL: Final = 0.1
"""Share of them below which it does not."""
_SUSTAINED: Final = 0.25
"""Clients must leave for this share of the time that they wait: one client that ends its many requests at
once says nothing of the others."""
_SUSTAINED_NS: Final = 200_000_000
"""And for this time, in which such a client has closed its connections."""
_GROWTH: Final = 1.01
"""While nobody leaves, clients are believed to wait so much longer after each time that they waited."""
_SHORTEST_NS: Final = 10_000_000
"""Nobody has waited for too long after less: such a client has changed its mind."""
_MEMORY: Final = 30
"""So many times the time that they waited, after which it is forgotten."""


class Patience:
    """The time that clients wait before they leave without an answer, learned from those that left.

    It is known once most clients leave, for longer than a moment. Then queues are kept shorter, nobody has to
    leave, and it slowly grows: clients that leave again correct it. It is forgotten when none do.
    """

    __slots__ = ("_answered", "_known", "_left_ns", "_patience_ns", "_share", "_since_ns")

    def __init__(self) -> None:
        self._known = False
        self._patience_ns = 1.0
        self._left_ns = self._since_ns = 0
        self._answered = 0
        self._share = 0.0

    def limit_ns(self, now_ns: int) -> int:
        """Return how long clients are believed to wait; 0 when nothing is known."""
        if not self._known:
            return 0
        times = (now_ns - self._left_ns) / self._patience_ns
        if times > _MEMORY:
            self._known = False
            return 0
        return int(self._patience_ns * _GROWTH**times)

    def record_departure(self, waited_ns: int, answered: int, now_ns: int) -> None:
        """Record that a client left after `waited_ns`; `answered` requests had an answer since the start."""
        believed_ns = self.limit_ns(now_ns)
        if not believed_ns:
            self._share *= (1 - 1 / _RECENT) ** (answered - self._answered)
            if self._share < _NORMAL:
                self._since_ns, self._patience_ns = now_ns, max(waited_ns, 1)
            believed_ns = int(self._patience_ns)
            self._share += (1 - self._share) / _RECENT
        # One of those that wait a little less: at once, because others like it are about to be executed.
        weight = 1 if believed_ns / 2 < waited_ns < believed_ns else _RECENT
        self._patience_ns = max(believed_ns + (waited_ns - believed_ns) / weight, 1.0)
        self._answered, self._left_ns = answered, now_ns
        sustained = now_ns - self._since_ns >= max(_SUSTAINED * self._patience_ns, _SUSTAINED_NS)
        self._known = self._known or (sustained and self._share >= _ABANDONED)

    @property
    def known(self) -> bool:
        """Whether there may be a limit."""
        return self._known


class Admission:
    """Decides about the requests of one model in one replica.

    Args:
        batch: requests that may execute together.
        max_wait_s: bound of the expected wait in the queue; 0 for none.
        learns: whether to learn how long clients wait.
        clock: `time.monotonic_ns`.

    Attributes:
        instances: instances that execute.
        execution_ns: duration of an execution.
        batch: requests of an execution while more are queued.
        lead: executions between a batch's release and its end; 2 where it is released during another.
        heeds_timeouts: whether a request's `timeout` parameter limits its time.
        refused: requests refused and dropped, by reason.
        is_learned: whether it is known how long clients wait that set no deadline.
        limits_all: whether a request that says nothing of its time may have to wait for too long.
    """

    def __init__(
        self,
        batch: int = 1,
        max_wait_s: float = 0.0,
        learns: bool = True,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.instances = 0
        self.lead = 1
        self.execution_ns = MovingMean()
        self.batch = MovingMean(batch)
        self.heeds_timeouts = True
        self.refused: dict[str, int] = {}
        self._max_wait_ns = int(max_wait_s * 1e9)
        self._learns = learns
        self._patience = Patience()
        self.clock = clock
        # Attributes, no properties: the queue asks for them at each request.
        self.is_learned = False
        self.limits_all = self._max_wait_ns > 0

    def is_timed(self, request: QueuedRequest) -> bool:
        """Return whether a request says how long its client waits."""
        infer = request.infer
        return bool(infer.deadline or (infer.timeout_us and self.heeds_timeouts))

    @property
    def lead_ns(self) -> float:
        """Time from a batch's release to its end."""
        return self.lead * self.execution_ns.value

    def late_ns(self, request: QueuedRequest) -> int:
        """Return the latest time (ns) at which the answer to a timed request may be expected."""
        arrival_ns = request.arrival_ns
        return int(arrival_ns + LATEST * (self._timed_ns(request) - arrival_ns))

    def wait_ns(self, ahead: int) -> int:
        """Return the expected wait in nanoseconds behind `ahead` queued requests, 0 when it is not known."""
        executions = ahead // max(self.batch.value, 1.0) + 0.5  # half of one is left of those in progress
        return int(executions * self.execution_ns.value / max(self.instances, 1)) if ahead else 0

    def refusal(self, request: QueuedRequest, wait_ns: int) -> Failure | None:
        """Return why to refuse a new request, which would wait for `wait_ns`; None to queue it."""
        if not wait_ns:
            return None
        if 0 < self._max_wait_ns < wait_ns:
            why = f"more than the {self._max_wait_ns / 1e9:.3g} s that it may be"
            return self._refuse(request, "max_queue", wait_ns, why)
        now = self.clock()
        limit_ns = self._limit_ns(request, now)
        if limit_ns and wait_ns + self.lead_ns > SAFETY * (limit_ns - now):
            return self._refuse_late(request, limit_ns, wait_ns, now)
        return None

    def lateness(self, request: QueuedRequest, ahead: int) -> Failure | None:
        """Return why to drop a queued request, behind which `ahead` others wait; None to execute it."""
        # The last one is executed whatever is expected: or a wrong estimate would never be corrected.
        lead_ns = self.lead_ns
        if not (ahead and lead_ns):
            return None
        now = self.clock()
        limit_ns = self._limit_ns(request, now)
        arrival_ns = request.arrival_ns
        if limit_ns and now + lead_ns > arrival_ns + LATEST * (limit_ns - arrival_ns):
            return self._refuse_late(request, limit_ns, self.wait_ns(ahead), now)
        return None

    def record_departure(self, request: QueuedRequest, answered: int) -> None:
        """Record that the client of a request has left; `answered` counts those that had an answer."""
        now = self.clock()
        waited_ns = now - request.arrival_ns
        timed_ns = self._timed_ns(request)
        # The end of its own deadline tells nothing about others. Nor does a client that leaves sooner than it
        # could have had an answer from an empty queue: it would leave whoever else was refused.
        soonest_ns = max(self.lead_ns / SAFETY, _SHORTEST_NS)
        at_deadline = timed_ns and waited_ns > SAFETY * (timed_ns - request.arrival_ns)
        if self._learns and waited_ns > soonest_ns and not at_deadline:
            self._patience.record_departure(waited_ns, answered, now)
            self._know(self._patience.known)

    def _know(self, learned: bool) -> None:
        self.is_learned = learned
        self.limits_all = learned or self._max_wait_ns > 0

    def _limit_ns(self, request: QueuedRequest, now_ns: int) -> int:
        """Return when (ns) the client of a request is going to leave, 0 when that is not known."""
        timed_ns = self._timed_ns(request)
        if not self.is_learned:
            return timed_ns
        patience_ns = self._patience.limit_ns(now_ns)
        self._know(patience_ns > 0)
        learned_ns = request.arrival_ns + patience_ns
        return learned_ns if patience_ns and not 0 < timed_ns < learned_ns else timed_ns

    def _timed_ns(self, request: QueuedRequest) -> int:
        """Return the limit that a request itself says, 0 for none."""
        infer = request.infer
        at_ns = int(infer.deadline * 1e9)
        if infer.timeout_us and self.heeds_timeouts:
            timeout_ns = request.arrival_ns + infer.timeout_us * 1000
            at_ns = min(at_ns, timeout_ns) if at_ns else timeout_ns
        return at_ns

    def _refuse_late(self, request: QueuedRequest, limit_ns: int, wait_ns: float, now_ns: int) -> Failure:
        """Refuse a request whose answer is expected too late."""
        lead_s = self.lead_ns / 1e9
        given_s = (limit_ns - request.arrival_ns) / 1e9
        if limit_ns == int(request.infer.deadline * 1e9) and lead_s > SAFETY * given_s:
            return self._expire(request, wait_ns, lead_s, given_s)
        left_s = max(limit_ns - now_ns, 0) / 1e9
        why = f"and the execution then {lead_s:.3g} s, too long for the {left_s:.3g} s that are left"
        reason = "deadline" if limit_ns == self._timed_ns(request) else "patience"
        return self._refuse(request, reason, wait_ns, why)

    def _expire(self, request: QueuedRequest, wait_ns: float, lead_s: float, given_s: float) -> Failure:
        """Refuse a request that an idle model could not answer by its client's deadline either."""
        self.refused["deadline"] = self.refused.get("deadline", 0) + 1
        text = (
            f"Deadline Exceeded: {_named(request)} takes {lead_s:.3g} s to execute a request, too long for"
            f" a deadline of {given_s:.3g} s"
        )
        return _rejected(ErrorCode.DEADLINE_EXCEEDED, text, wait_ns)

    def _refuse(self, request: QueuedRequest, reason: str, wait_ns: float, why: str) -> Failure:
        """Refuse a request that would have to wait for too long."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        text = f"{_named(request)} is overloaded: the wait in its queue is {wait_ns / 1e9:.3g} s, {why}"
        return _rejected(ErrorCode.UNAVAILABLE, text, wait_ns)


def _rejected(code: ErrorCode, text: str, wait_ns: float) -> Failure:
    return Failure(code, text, FailureReason.REJECTED, max(wait_ns / 1e9, 0.001))


def _named(request: QueuedRequest) -> str:
    return f"[request id: {request.infer.id or '<id_unknown>'}] model '{request.infer.model_name}'"
