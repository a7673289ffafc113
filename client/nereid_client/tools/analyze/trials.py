"""What configurations of a model, or of the steps of an ensemble, are measured to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from nereid_client.tools.perf import slo
from nereid_client.tools.perf.asking import Asking
from nereid_client.tools.perf.bench import Bench, Progress
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.result import Result
from nereid_client.tools.perf.search import Search

C = TypeVar("C")
"""A configuration: of a model (`Candidate`), or of several (`Combination`)."""
_FACTOR: Final = 1.12
_STEP: Final = 1.05
_CHANCES: Final = 2
_FAR_BELOW: Final = 0.2
"""Of what a candidate answers in a closed loop; less may be the machine's doing."""
_LESS: Final = 0.97
"""At most this share of a rate that it did not keep is what a candidate does."""
_TURN_S: Final = 0.5
_OPEN_SHARE: Final = 0.9
"""Of what a candidate answers in a closed loop: where the search of its rate in open loops begins."""
_IN_FLIGHT: Final = (32, 256)
"""Requests of a closed loop if nothing limits the latency, and at most."""


@dataclass
class Measured:
    """What a candidate does: the highest rate that keeps the objective, and loads up to it that did.

    Attributes:
        below: the rate that it did not keep, and had to; then `rate` is what it answered of that.
        why: no rate was found, or what is doubtful about it; "" if nothing is.
    """

    rate: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    mean_batch: float = 0.0
    points: list[tuple[float, float]] = field(default_factory=list)
    below: float = 0.0
    why: str = ""


class Turn(NamedTuple):
    """What a candidate answers a second in a short closed loop, and what is doubtful about it."""

    rate: float
    doubt: str


class Trials(ABC, Generic[C]):
    """Measures configurations, which it loads.

    Args:
        rules: the objective.
        progress: is told what is done.
    """

    def __init__(self, rules: Sequence[slo.Rule], progress: Progress) -> None:
        self._rules, self.progress = rules, progress

    @abstractmethod
    def apply(self, candidate: C) -> None:
        """Load a configuration; nothing is written.

        Raises:
            PerfError: the server does not load it.
        """

    @abstractmethod
    def restore(self) -> None:
        """Load what was loaded before."""

    def rate(
        self,
        bench: Bench,
        candidate: C,
        expected: float,
        left: Callable[[], float],
        floor: float = 0.0,
    ) -> Measured:
        """Load a candidate and search the highest rate at which it keeps the objective.

        Args:
            expected: what it answers in a closed loop.
            left: returns the seconds that are left for it.
            floor: if it does not keep it at this rate, nothing more is measured; 0 for none.
        """
        self.apply(candidate)
        results: list[Result] = []
        asking = Asking(bench, self._rules, expected, results)
        if floor and not any(asking.ask(floor, long=False).kept for _ in range(_CHANCES)):
            answered = max(result.rate for result in results)
            return Measured(min(answered, _LESS * floor), below=floor)
        # What had to beat another one is mostly little better: small steps need few probes.
        first, factor = (floor, _STEP) if floor else (max(_OPEN_SHARE * expected, 1.0), _FACTOR)
        found = Search(asking.ask, left, asking.seconds, expected).run(first, factor)
        if not found.rate:
            return Measured(why=found.why)
        last = results[-1]
        return Measured(
            found.rate,
            last.latency["p50"],
            last.latency["p99"],
            last.server.mean_batch if last.server else 0.0,
            self._points(results, last, found.rate),
            why=last.void or ("" if found.rate > _FAR_BELOW * expected else "far below its closed loop"),
        )

    def _points(self, results: Sequence[Result], last: Result, rate: float) -> list[tuple[float, float]]:
        """Return the loads that kept the objective, up to the rate that is told: above it, it was luck."""
        below = (
            (result.level.value, result.latency["p99"])
            for result in results
            if result.level.value < rate and not slo.broken(self._rules, result)
        )
        return [*below, (rate, last.latency["p99"])]

    def turn(self, bench: Bench, candidate: C, in_flight: int) -> Turn:
        """Load a candidate, and measure it with so many requests in flight, for a short time."""
        result = self.closed_loop(bench, candidate, in_flight)
        return Turn(result.rate, _doubt(result) if result.disturbed or result.failed else "")

    def closed_loop(self, bench: Bench, candidate: C, in_flight: int) -> Result:
        """As `turn`; return all that was measured."""
        self.apply(candidate)
        for _ in range(_CHANCES):
            result = bench.measure(Level("concurrency", in_flight), 1, _TURN_S)
            if not result.disturbed:
                break
        return result

    def filled(self, bench: Bench, candidate: C, in_flight: int) -> tuple[int, Result]:
        """Have twice as many requests in flight until they take half of what the objective allows.

        Returns:
            How many that are, at least as many as given, and what was measured of them.
        """
        while True:
            result = self.closed_loop(bench, candidate, in_flight)
            enough = self.in_flight(result.rate)
            if in_flight >= enough:
                return in_flight, result
            in_flight = min(2 * in_flight, enough)

    def in_flight(self, rate: float) -> int:
        """Return how many requests are in flight at a rate if they take half of what the objective allows."""
        limits_ms = [rule.limit for rule in self._rules if rule.name != "errors"]
        usual, most = _IN_FLIGHT
        return min(max(round(rate * min(limits_ms) / 2e3), 1), most) if limits_ms else usual


def _doubt(result: Result) -> str:
    """Return what may have made a figure that of something else."""
    return result.void or ", ".join(result.reasons)
