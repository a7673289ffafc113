"""How many replicas keep an objective at a rate, with an interval over stretches of the traffic. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from nereid_client.tools.perf.slo import Rule
from nereid_client.tools.plan.arrivals import Traffic, resampled
from nereid_client.tools.plan.simulation import Replica, latencies

_DRAWN: Final = 20
_REQUESTS: Final = 3000
_KEPT: Final = 0.95
"""Share of the draws that have to keep the objective."""
_MOST: Final = 1000
_FULL: Final = 0.98
"""Load from which a number of replicas is not simulated: their queue only grows."""


class Outcome(NamedTuple):
    """What so many replicas do.

    Attributes:
        load: share of their capacity.
        p50_ms, p99_ms: of the requests of all draws.
        interval_ms: the p99 of a single draw, in 90 % of them.
        kept: share of the draws that keep the objective.
    """

    replicas: int
    load: float
    p50_ms: float
    p99_ms: float
    interval_ms: tuple[float, float]
    kept: float

    @property
    def enough(self) -> bool:
        """Whether they keep the objective."""
        return self.kept >= _KEPT


def outcome(
    replica: Replica, count: int, traffic: Traffic, rate: float, rules: Sequence[Rule], later: float = 1.0
) -> Outcome:
    """Simulate so many replicas at a rate, for several draws of the traffic.

    Args:
        later: what latencies are multiplied by.
    """
    load = rate / (count * replica.capacity(float(np.mean(traffic.rows))))
    if load >= _FULL:
        return Outcome(count, load, math.inf, math.inf, (math.inf, math.inf), 0.0)
    drawn = (resampled(traffic, rate, _REQUESTS, seed) for seed in range(_DRAWN))
    found = [latencies(replica, count, *each) * 1e3 * later for each in drawn]
    together = np.concatenate(found)
    p99 = [float(np.percentile(each, 99)) for each in found]
    return Outcome(
        count,
        load,
        float(np.percentile(together, 50)),
        float(np.percentile(together, 99)),
        (float(np.percentile(p99, 5)), float(np.percentile(p99, 95))),
        sum(all(_value(rule, each) < rule.limit for rule in rules) for each in found) / _DRAWN,
    )


def _value(rule: Rule, latencies_ms: npt.NDArray[np.float64]) -> float:
    if rule.name == "errors":
        return 0.0
    if rule.name in ("mean", "max"):
        return float(getattr(latencies_ms, rule.name)())
    return float(np.percentile(latencies_ms, float(rule.name[1:])))


def outcomes(
    replica: Replica, traffic: Traffic, rate: float, rules: Sequence[Rule], later: float = 1.0
) -> Iterator[Outcome]:
    """Yield what numbers of replicas do, from the fewest that may be enough to the first that is.

    Ends without one that is enough when more replicas do not help: single requests take too long.
    """
    fewest = max(math.ceil(rate / replica.capacity(float(np.mean(traffic.rows))) / _FULL), 1)
    before = math.inf
    for count in range(fewest, min(2 * fewest + 8, _MOST) + 1):
        found = outcome(replica, count, traffic, rate, rules, later)
        yield found
        if found.enough or (count > fewest + 2 and found.p99_ms > 0.99 * before):
            return
        before = found.p99_ms
