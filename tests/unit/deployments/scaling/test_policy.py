"""How many replicas there are to be, decided on samples of simulated queues."""

from collections import Counter, deque
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest

from deployments.parameters import ScalingBounds
from deployments.scaling.policy import PERIOD_S, Decision, Sample, ScalingPolicy, quantile_ms


class Change(NamedTuple):
    """A change of the number of replicas, and when."""

    at: float
    before: int
    after: int
    reason: str


class Simulation:
    """One queue in front of replicas that execute a request each; requests arrive at random.

    Args:
        bounds: the parameters of the model.
        service_s: the mean time of an execution, which varies at random.
        rate: requests a second, until `set_rate`.
        replicas: those at the start.
        start_s: the time that a replica takes to start.
        seed: of all that is random.
    """

    def __init__(
        self,
        bounds: ScalingBounds,
        service_s: float,
        rate: float,
        replicas: int = 1,
        start_s: float = 5.0,
        seed: int = 1,
    ) -> None:
        self.policy = ScalingPolicy(bounds, replicas, 0.0)
        self.changes: list[Change] = []
        self.now = 0.0
        self.running = replicas
        self._service_s, self._start_s, self._random = service_s, start_s, Random(seed)
        self._tick = PERIOD_S
        self._ends: list[float] = []
        self._starts: list[float] = []
        self._queue: deque[float] = deque()
        self._executing_s = self._waiting_s = 0.0
        self._waits: Counter[int] = Counter()
        self._arrived = False
        self.set_rate(rate)

    def set_rate(self, rate: float) -> None:
        """Have so many requests arrive a second from now on."""
        self._rate = rate
        self._arrival = self.now + self._random.expovariate(rate)

    def run(self, until: float) -> list[Change]:
        """Run until a time; return the changes since the last call."""
        begun = len(self.changes)
        while self.now < until:
            self._advance(min(self._arrival, self._tick, *self._ends[:1], *self._starts[:1]))
            self._dispatch()
        return self.changes[begun:]

    def _advance(self, to: float) -> None:
        self._executing_s += len(self._ends) * (to - self.now)
        self._waiting_s += len(self._queue) * (to - self.now)
        self.now = to
        while self._ends and self._ends[0] <= to:
            heappop(self._ends)
        while self._starts and self._starts[0] <= to:
            self.running += self._starts.pop(0) > 0
        if self._arrival <= to:
            self._arrive()
        if self._tick <= to:
            self._sample()

    def _arrive(self) -> None:
        self._queue.append(self.now)
        self._arrived = True
        self.set_rate(self._rate)

    def _dispatch(self) -> None:
        while self._queue and len(self._ends) < self.running:
            waited = self.now - self._queue.popleft()
            self._waits[int(waited * 1e9).bit_length()] += 1
            heappush(self._ends, self.now + self._random.expovariate(1 / self._service_s))

    def _sample(self) -> None:
        oldest_ms = (self.now - self._queue[0]) * 1e3 if self._queue else 0.0
        active = bool(self._arrived or self._queue or self._ends)
        means = self._executing_s / PERIOD_S, self._waiting_s / PERIOD_S
        sample = Sample(self.running, *means, self._waits, oldest_ms, active)
        self._executing_s = self._waiting_s = 0.0
        self._waits, self._arrived = Counter(), False
        self._tick += PERIOD_S
        self._change(self.policy.decision, self.policy.observe(sample, self.now))

    def _change(self, last: Decision, decision: Decision) -> None:
        if decision.replicas == last.replicas:
            return
        self.changes.append(Change(self.now, last.replicas, decision.replicas, decision.reason))
        if decision.replicas < last.replicas:
            self.running = decision.replicas
        else:
            self._starts += [self.now + self._start_s] * (decision.replicas - last.replicas)


@pytest.mark.parametrize("service_s", [0.001, 0.01, 0.05, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_first_replica_is_asked_for_within_two_seconds_of_ten_times_the_load(
    service_s: float, seed: int
) -> None:
    step = 30.0 + Random(seed).random()
    bounds = ScalingBounds(16, max_queue_ms=max(20.0, 1000 * service_s))
    running = Simulation(bounds, service_s, 0.3 / service_s, seed=seed)
    running.run(step)
    running.set_rate(3.0 / service_s)
    (first, *_) = running.run(step + 5)
    assert first.after > first.before
    assert first.at - step <= 2.0


def test_replicas_grow_by_factors_of_two_until_the_load_is_carried() -> None:
    running = Simulation(ScalingBounds(32), 0.01, 900.0)
    running.run(100)
    assert all(change.after <= 2 * change.before for change in running.changes)
    assert all(later.at - earlier.at >= 5.0 for earlier, later in pairwise(running.changes))
    assert running.policy.decision.replicas == 16, "900/s keep nine busy, at 70 % thirteen"


@pytest.mark.parametrize("load", [0.2, 0.6, 0.77, 1.5, 2.5, 4.2])
@pytest.mark.parametrize("service_s", [0.01, 0.05])
def test_constant_load_causes_no_change_in_ten_minutes(load: float, service_s: float) -> None:
    """Requests arrive and execute at random; in the first minutes the number that carries them is found."""
    running = Simulation(ScalingBounds(10, max_queue_ms=10_000 * service_s), service_s, load / service_s)
    running.run(600)
    assert running.run(1200) == []


@pytest.mark.parametrize("seed", range(4))
def test_noise_around_the_threshold_does_not_flap(seed: int) -> None:
    """The load is between those that one and two replicas carry, another one each second."""
    running, noise = Simulation(ScalingBounds(10), 0.02, 40.0, seed=seed), Random(seed)
    for second in range(1800):
        running.set_rate(noise.uniform(20.0, 50.0))
        running.run(second)
    removed = [change for change in running.changes if change.after < change.before]
    assert len(running.changes) <= 4 and len(removed) <= 1, running.changes


def test_a_number_that_was_too_small_for_a_load_is_not_tried_again_under_it() -> None:
    """Half of one replica's places are in use, yet requests wait there for too long."""
    running = Simulation(ScalingBounds(4, max_queue_ms=1.0), 0.02, 25.0)
    (added, *_) = running.run(60)
    assert (added.after, added.reason) == (2, "queue")
    assert all(change.after >= 2 for change in running.run(1800))


def test_replicas_leave_one_by_one_after_five_minutes_of_less_load() -> None:
    running = Simulation(ScalingBounds(8, fewest=2), 0.01, 380.0)
    running.run(100)
    most = running.policy.decision.replicas
    running.set_rate(20.0)
    removed = running.run(900)
    assert most > 5 and [change.after for change in removed] == list(range(most - 1, 1, -1))
    assert all(change.at >= 390 for change in removed if change.after < 5), "380/s need five replicas"
    assert all(later.at - earlier.at >= 15 for earlier, later in pairwise(removed))


def test_idle_version_goes_to_zero_and_comes_back_by_a_request() -> None:
    bounds = ScalingBounds(4, fewest=0, idle_seconds=60)
    policy = ScalingPolicy(bounds, 1, 0.0)
    assert policy.observe(Sample(1, active=True), 0.5).replicas == 1
    assert policy.observe(Sample(1), 60.0).replicas == 1
    assert policy.observe(Sample(1), 60.5) == Decision(0, "idle", "no request for 60 s")
    assert policy.observe(Sample(0), 100.0).replicas == 0
    assert policy.request(101.0)[:2] == (1, "request")
    assert policy.observe(Sample(0), 171.0).replicas == 1, "it still starts"
    assert policy.observe(Sample(1), 230.5).replicas == 1
    assert policy.observe(Sample(1), 231.0).replicas == 0


def busy(running: int, room: int | None = None) -> Sample:
    return Sample(running, float(running), 20.0, {30: 50}, 900.0, active=True, room=room)


def observe(policy: ScalingPolicy, sample: Sample, *times: float) -> list[int]:
    return [policy.observe(sample, time).replicas for time in times]


def observe_until(policy: ScalingPolicy, sample: Sample, begin: float, end: float) -> int:
    """Take such samples from `begin` to just before `end`; return the number then."""
    samples = int((end - begin) / PERIOD_S)
    return observe(policy, sample, *(begin + PERIOD_S * number for number in range(samples)))[-1]


def test_more_replicas_wait_until_the_last_ones_run() -> None:
    policy = ScalingPolicy(ScalingBounds(16), 2, 0.0)
    assert observe(policy, busy(2), 0.5, 1.0, 1.5) == [2, 2, 4]
    assert observe_until(policy, busy(2), 2.0, 16.5) == 4
    assert observe(policy, busy(2), 16.5) == [8], "none has started: a bigger need is met after a while"
    assert observe(policy, busy(8), 17.0, 17.5, 18.0) == [8, 8, 16]


def test_number_stays_within_its_bounds() -> None:
    assert observe(ScalingPolicy(ScalingBounds(3), 2, 0.0), busy(2), 0.5, 1.0, 1.5) == [2, 2, 3]
    policy = ScalingPolicy(ScalingBounds(4, fewest=2), 1, 0.0)
    assert policy.observe(Sample(1), 0.5) == Decision(2, "bounds", "2 to 4 replicas are allowed")
    assert observe(ScalingPolicy(ScalingBounds(4), 0, 0.0), Sample(0), 0.5) == [1], "never below the fewest"


def test_no_replica_starts_without_memory_for_it() -> None:
    policy = ScalingPolicy(ScalingBounds(8), 4, 0.0)
    assert observe(policy, busy(4, room=0), 0.5, 1.0, 1.5) == [4, 4, 4]
    assert policy.decision.reason == "memory"
    assert policy.decision.figures.startswith("no memory for another replica: load 1.00 (target 0.7), queue")
    assert observe(policy, busy(4, room=1), 2.0) == [5]


def test_version_with_sequences_keeps_its_replicas() -> None:
    def after(sequences: bool) -> int:
        policy = ScalingPolicy(ScalingBounds(4), 3, 0.0)
        observe(policy, Sample(3, sequences=sequences), *(0.5 * n for n in range(602)))
        return policy.decision.replicas

    assert (after(sequences=False), after(sequences=True)) == (2, 3)


def test_number_that_another_has_set_is_adopted() -> None:
    policy = ScalingPolicy(ScalingBounds(8), 2, 0.0)
    policy.adopt(5)
    assert policy.decision == Decision(5, "start")


def test_quantile_of_waits_lies_in_its_bucket() -> None:
    assert quantile_ms({}, 0.9) == 0.0
    assert quantile_ms({0: 100}, 0.9) < 1e-5
    found = quantile_ms({20: 80, 25: 20}, 0.9)
    assert 2**24 / 1e6 < found < 2**25 / 1e6
