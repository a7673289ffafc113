"""Asks a server whether it keeps an objective at a rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nereid_client.tools.perf import slo
from nereid_client.tools.perf.bench import Bench
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.result import Result
from nereid_client.tools.perf.search import Tried, seconds

_CHANCES: Final = 2


class Asking:
    """The measurements of a search, each with arrivals of its own.

    Args:
        capacity: what the server answers a second in a closed loop.
        results: get that of every measurement.
        long_s: seconds of a measurement that decides; 0 for what its rate needs.
    """

    def __init__(
        self,
        bench: Bench,
        rules: Sequence[slo.Rule],
        capacity: float,
        results: list[Result],
        long_s: float = 0.0,
    ) -> None:
        self._bench, self._rules, self._capacity, self._long_s = bench, rules, capacity, long_s
        self._results = results

    def seconds(self, rate: float, long: bool) -> float:
        """Return how long a rate is measured."""
        return (long and self._long_s) or seconds(rate, long)

    def ask(self, rate: float, long: bool) -> Tried:
        """Measure a rate; once more if it breaks the objective and not by the load alone."""
        for _ in range(_CHANCES):
            result = self._bench.measure(Level("rate", rate), 1, self.seconds(rate, long), self._capacity)
            self._results.append(result)
            tried = Tried(rate, result.offered, slo.excess(self._rules, result), long)
            if tried.kept or not result.disturbed:
                break
        return tried
