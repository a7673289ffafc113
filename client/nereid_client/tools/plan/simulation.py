"""Simulates replicas of a model: each request goes to the one with the fewest in flight. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

_END, _ARRIVAL, _DELAY = range(3)
_IN_TIME: Final = 1e-9


class Replica(NamedTuple):
    """What a replica does.

    Attributes:
        seconds: of executions of 0, 1, 2, ... rows, as long as they are the most that requests have together.
        batch: rows of a batch; 0 where each request is executed by itself.
        delay_s: how long a batch waits to be full.
        instances: that execute at the same time.
        outside_s: of a request beyond queue and execution.
    """

    seconds: Sequence[float]
    batch: int
    delay_s: float = 0.0
    instances: int = 1
    outside_s: float = 0.0

    def scaled(self, factor: float) -> Replica:
        """Return one whose executions take so many times as long."""
        return self._replace(seconds=[each * factor for each in self.seconds])

    def capacity(self, rows: float) -> float:
        """Return the requests a second that it answers at most, of so many rows on average."""
        if not self.batch:
            return self.instances / self.seconds[max(round(rows), 1)]
        return self.instances * self.batch / rows / self.seconds[self.batch]


@dataclass
class _Running:
    free: int
    in_flight: int = 0
    queue: deque[int] = field(default_factory=deque)
    waits_until: float = 0.0


class _Simulation:
    def __init__(self, replica: Replica, count: int, times: Sequence[float], rows: Sequence[int]) -> None:
        self._replica, self._times, self._rows = replica, times, rows
        self._running = [_Running(replica.instances) for _ in range(count)]
        self._events: list[tuple[float, int, int, int]] = []
        """Time, kind, number of the replica, requests that have ended."""
        self.ends = np.zeros(len(times))

    def run(self) -> Any:
        """Return when each request was answered."""
        for request, time in enumerate(self._times):
            self._until(time)
            number = min(range(len(self._running)), key=lambda each: self._running[each].in_flight)
            running = self._running[number]
            running.in_flight += 1
            running.queue.append(request)
            self._dispatch(number, time)
        self._until(float("inf"))
        return self.ends

    def _until(self, time: float) -> None:
        while self._events and self._events[0][0] <= time:
            now, kind, number, ended = heapq.heappop(self._events)
            if kind == _END:
                self._running[number].free += 1
                self._running[number].in_flight -= ended
            self._dispatch(number, now)

    def _dispatch(self, number: int, now: float) -> None:
        running, replica = self._running[number], self._replica
        while running.free and running.queue:
            batch, rows, full = self._batch(running)
            due = self._times[batch[0]] + replica.delay_s
            if not full and due > now + _IN_TIME:
                if running.waits_until != due:
                    running.waits_until = due
                    heapq.heappush(self._events, (due, _DELAY, number, 0))
                return
            for _ in batch:
                running.queue.popleft()
            running.free -= 1
            end = now + replica.seconds[min(rows, len(replica.seconds) - 1)]
            self.ends[batch] = end
            heapq.heappush(self._events, (end, _END, number, len(batch)))

    def _batch(self, running: _Running) -> tuple[list[int], int, bool]:
        """Return the requests that would be executed now, their rows, and whether no more fit."""
        most = self._replica.batch
        first = running.queue[0]
        if not most:
            return [first], self._rows[first], True
        batch, rows = [first], self._rows[first]
        for request in list(running.queue)[1 : most + 1]:
            if rows + self._rows[request] > most:
                return batch, rows, True
            batch.append(request)
            rows += self._rows[request]
        return batch, rows, rows >= most


def latencies(replica: Replica, count: int, times: Sequence[float], rows: Sequence[int]) -> Any:
    """Return the seconds that requests take.

    Args:
        replica: what each replica does.
        count: their number.
        times: when the requests come, in order.
        rows: of each.
    """
    ends = _Simulation(replica, count, [*map(float, times)], [*map(int, rows)]).run()
    return ends - np.asarray(times) + replica.outside_s
