"""Decides the number of replicas of a version: a pure function of their reports and of the time.

Two signals add replicas: the share of their places that execute, and how long requests wait. Requests that
wait count as load only once they wait for too long, for a short queue is what fills batches. Replicas leave
one at a time, when the largest need of five minutes allows it. A number that proved too small for a load is
not tried again under that load: what made requests wait there cannot be seen while more replicas serve.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from app.core.observability.quantiles import quantile
from deployments.parameters import ScalingBounds

PERIOD_S: Final = 0.5
"""Time from one sample to the next."""
_MEAN_S: Final = 1.5
_SLOW_S: Final = 30.0
_EVIDENCE: Final = 200
"""Requests that means are taken over: those of `_MEAN_S`, or of up to `_SLOW_S` where they are fewer."""
_FEWEST: Final = 20
"""Requests that a quantile is taken of; fewer say nothing."""
_SAMPLES: Final = 2
"""Samples in a row that must ask for more."""
_START_S: Final = 15.0
"""Time for new replicas to run, before more are added; and from one that leaves to the next."""
_DOWN_S: Final = 300.0
_TOLERANCE: Final = 0.1
_LESS: Final = 0.75
"""Share of a load for which a number proved too small, below which that number is tried again."""
_REMEMBER_S: Final = 3600.0
"""How long a number of replicas that proved too small is remembered."""


class Sample(NamedTuple):
    """The work of the replicas of a version since the last sample.

    Attributes:
        running: replicas that serve.
        executing: mean number of places in use, in replicas: 1.5 is one and a half replicas' places.
        waiting: mean number of queued requests, in the same unit.
        waits: answered requests by the time they were queued: `n` stands for less than 2**n ns.
        oldest_ms: how long the oldest queued request has waited.
        active: whether any request was there.
        sequences: whether a replica has sequences, which would be lost with it.
        room: replicas that the free memory allows to add; None where that is not known.
    """

    running: int
    executing: float = 0.0
    waiting: float = 0.0
    waits: Mapping[int, int] = {}
    oldest_ms: float = 0.0
    active: bool = False
    sequences: bool = False
    room: int | None = None


class _Load(NamedTuple):
    """The means of several samples, the 90 % quantile of the time in the queue, and whether that shrinks."""

    executing: float
    waiting: float
    queue_ms: float
    draining: bool


def _executing(samples: Sequence[Sample]) -> float:
    return sum(sample.executing for sample in samples) / len(samples)


def _waiting(samples: Sequence[Sample]) -> float:
    return sum(sample.waiting for sample in samples) / len(samples)


def quantile_ms(waits: Mapping[int, int], share: float) -> float:
    """Return a quantile of times in the queue, in milliseconds; 0 of none. See `Sample.waits`."""
    found = quantile(waits, share)
    if found is None:
        return 0.0
    low = 2 ** (found.bucket - 1) if found.bucket else 0
    return float(low + (2**found.bucket - low) * found.part) / 1e6


class Decision(NamedTuple):
    """The number of replicas to have, and why.

    Attributes:
        replicas: the number.
        reason: `start`, `load`, `queue`, `surplus`, `idle`, `request`, `rollout`, `forecast`, `bounds` or
            `memory`.
        figures: the figures that led to it, for people.
    """

    replicas: int
    reason: str = "start"
    figures: str = ""


class _Largest:
    """The largest of the values of the last `_DOWN_S` seconds."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()  # falling

    def add(self, now: float, value: float) -> float:
        values = self._values
        while values and values[-1][1] <= value:
            values.pop()
        values.append((now, value))
        while values[0][0] < now - _DOWN_S:
            values.popleft()
        return values[0][1]


class ScalingPolicy:
    """Decides for one version. Times are seconds of one clock.

    Args:
        bounds: the parameters of the model.
        replicas: the number that Serve was told to run.
        now: the time.

    Attributes:
        decision: the last one.
    """

    def __init__(self, bounds: ScalingBounds, replicas: int, now: float) -> None:
        self._bounds = bounds
        self.decision = Decision(replicas)
        self._recent: deque[tuple[float, Sample]] = deque()
        self._above = 0
        self._needs, self._loads = _Largest(), _Largest()
        self._too_few: dict[int, tuple[float, float]] = {}
        """By a number of replicas, when more were added to it, and what was executing then."""
        self._sufficed: set[int] = set()
        """Numbers that were more than enough, since when they were last too few."""
        self._since = now
        self._added_at = self._removed_at = -math.inf
        self._active_at = now
        self._room: int | None = None
        self._expected = 0
        """Replicas that a forecast asks for: none of them leaves."""

    def adopt(self, replicas: int) -> None:
        """Take over a number that another has told Serve."""
        if replicas != self.decision.replicas:
            self.decision = Decision(replicas)

    def request(self, now: float) -> Decision:
        """Decide when a request has arrived for a version that may have no replica."""
        self._active_at = now
        if not self.decision.replicas:
            self._added_at = now
            self.decision = Decision(1, "request", "a request arrived while it had no replica")
        return self.decision

    def raise_to(self, replicas: int, now: float) -> Decision:
        """Decide when a rollout needs so many replicas for the requests that it is going to send."""
        return self._raise(replicas, now, "rollout", "for its part of the requests")

    def expect(self, replicas: int, now: float, figures: str) -> Decision:
        """Decide when a forecast asks for so many replicas; 0 for none, which takes none away.

        The number at most doubles at once, and does not grow again before the new ones serve.
        """
        present = self.decision.replicas
        self._expected = min(replicas, self._bounds.most)
        if 0 < present < replicas and now - self._added_at >= _START_S:
            return self._raise(min(replicas, 2 * present), now, "forecast", figures)
        return self.decision

    def _raise(self, replicas: int, now: float, reason: str, figures: str) -> Decision:
        present = self.decision.replicas
        wanted = min(replicas, self._bounds.most)
        if self._room is not None:
            wanted = min(wanted, present + self._room)
        if wanted > present:
            self._added_at = now
            self.decision = Decision(wanted, reason, figures)
        elif min(replicas, self._bounds.most) > present:
            self.decision = Decision(
                present, "memory", f"no memory for another replica: needed for a {reason}"
            )
        return self.decision

    def observe(self, sample: Sample, now: float) -> Decision:
        """Decide after a sample."""
        self._room = sample.room
        if sample.active or not sample.running:  # its load may take longer than it may be idle
            self._active_at = now
        bounds, present = self._bounds, self.decision.replicas
        allowed = min(max(present, bounds.fewest), bounds.most)
        if allowed != present:
            figures = f"{bounds.fewest} to {bounds.most} replicas are allowed"
            self.decision = Decision(allowed, "bounds", figures)
        elif present:
            self.decision = self._idle(now) or self._follow_load(sample, now) or self.decision
        return self.decision

    def _idle(self, now: float) -> Decision | None:
        quiet_s = now - self._active_at
        if self._bounds.fewest or quiet_s < self._bounds.idle_seconds:
            return None
        return Decision(0, "idle", f"no request for {quiet_s:.0f} s")

    def _follow_load(self, sample: Sample, now: float) -> Decision | None:
        load = self._load(sample, now)
        late = load.queue_ms > self._bounds.max_queue_ms and not load.draining
        need = (load.executing + (load.waiting if late else 0.0)) / self._bounds.target_load
        largest = self._needs.add(now, self.decision.replicas if sample.sequences else need)
        heaviest = self._loads.add(now, load.executing)
        wanted = 0 if load.draining else self._more(sample, need, late)
        self._above = self._above + 1 if wanted else 0
        if wanted and self._above >= _SAMPLES and self._may_add(sample, now):
            return self._add(wanted, sample.room, load, late, now)
        if not wanted and self._may_remove(sample, largest, heaviest, now):
            return self._remove(largest, now)
        return None

    def _load(self, sample: Sample, now: float) -> _Load:
        """Return the load of the last samples: of as few as tell enough."""
        recent = self._recent
        if recent and recent[-1][1].running != sample.running:  # what was before tells nothing of these
            recent.clear()
        recent.append((now, sample))
        while recent[0][0] <= now - _SLOW_S:
            recent.popleft()
        short = [each for at, each in recent if at > now - _MEAN_S]
        growing = len(short) > 1 and short[-1].waiting >= short[0].waiting
        if growing and sample.oldest_ms > self._bounds.max_queue_ms and sample.waiting > sample.running:
            return _Load(_executing(short), _waiting(short), sample.oldest_ms, draining=False)
        samples, waits = [], Counter[int]()
        for at, each in reversed(recent):
            if at <= now - _MEAN_S and waits.total() >= _EVIDENCE:
                break
            samples.append(each)
            waits.update(each.waits)
        queue_ms = quantile_ms(waits, 0.9) if growing and waits.total() >= _FEWEST else 0.0
        draining = not growing and sample.waiting > _TOLERANCE * sample.running
        return _Load(_executing(samples), _waiting(samples), queue_ms, draining)

    def _more(self, sample: Sample, need: float, late: bool) -> int:
        """Return how many replicas there should be, if that is more; 0 otherwise."""
        present, most = self.decision.replicas, self._bounds.most
        wanted = math.ceil(need) if need > present * (1 + _TOLERANCE) else present
        if late and sample.running >= present:  # of those that start nothing is known yet
            known = [number for number in self._sufficed if number > present]
            wanted = max(wanted, min(known, default=present + max(1, present // 2)))
        wanted = min(wanted, 2 * present, most)
        return wanted if wanted > present else 0

    def _may_add(self, sample: Sample, now: float) -> bool:
        return sample.running >= self.decision.replicas or now - self._added_at >= _START_S

    def _add(self, wanted: int, room: int | None, load: _Load, late: bool, now: float) -> Decision:
        present = self.decision.replicas
        share, target = load.executing / present, self._bounds.target_load
        figures = f"load {share:.2f} (target {target:g}), queue {load.queue_ms:.0f} ms"
        wanted = min(wanted, present + room) if room is not None else wanted
        if wanted <= present:
            return Decision(present, "memory", f"no memory for another replica: {figures}")
        self._too_few[present] = now, load.executing
        self._sufficed.discard(present)
        self._added_at = now
        return Decision(wanted, "queue" if late else "load", figures)

    def _may_remove(self, sample: Sample, largest: float, heaviest: float, now: float) -> bool:
        fewer = self.decision.replicas - 1
        return (
            fewer >= max(self._bounds.fewest, self._expected, 1)
            and sample.running == self.decision.replicas
            and now - max(self._since, self._added_at) >= _DOWN_S
            and now - self._removed_at >= _START_S
            and largest <= fewer * (1 - _TOLERANCE)
            and not self._proved_too_few(fewer, heaviest, now)
        )

    def _proved_too_few(self, replicas: int, executing: float, now: float) -> bool:
        return any(
            number >= replicas and executing >= _LESS * load and now - at < _REMEMBER_S
            for number, (at, load) in self._too_few.items()
        )

    def _remove(self, largest: float, now: float) -> Decision:
        self._removed_at = now
        self._sufficed.add(self.decision.replicas)
        figures = f"{largest:.2f} replicas were needed at most in {_DOWN_S:.0f} s"
        return Decision(self.decision.replicas - 1, "surplus", figures)
