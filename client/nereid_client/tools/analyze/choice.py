"""Chooses the candidates that are measured, and ranks them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from nereid_client.tools.analyze.space import Candidate
from nereid_client.tools.analyze.trials import C

BETTER: Final = 0.97
"""A candidate that does less than this share of another one is worse; chance makes smaller differences."""
_PROMISING: Final = 0.7
_CLOSE: Final = 0.9
_FINALISTS: Final = 2


def promising(predicted: Mapping[Candidate, float], most: int) -> list[Candidate]:
    """Return the candidates with the highest predictions, at most so many.

    The first is that with which the costs were measured last, if it is one of them: it is loaded already.

    What is far below the highest prediction is left out: the model of the queue does not know what the server
    takes for itself, but it knows which batches and instances can do no good.
    """
    ordered = sorted(predicted, key=lambda candidate: -predicted[candidate])[:most]
    return sorted(
        (c for c in ordered if predicted[c] > 0 and predicted[c] >= _PROMISING * predicted[ordered[0]]),
        key=lambda c: (-c.instances, -c.batch, c),
    )


def compete(
    candidates: Sequence[C], beside: C, rounds: int, measure: Callable[[C], float]
) -> dict[C, list[float]]:
    """Measure candidates in turn, the better half of them in the next round, and two in the last one.

    Return their rates by round.

    Args:
        beside: is measured in every round, whatever it does.
        measure: returns the rate of a short measurement.
    """
    rates: dict[C, list[float]] = {candidate: [] for candidate in (*candidates, beside)}
    left = list(candidates)
    for number in range(rounds):
        turn = list(dict.fromkeys((*left, beside)))
        if number % 2:  # so that a drift of the machine is no candidate's
            turn.reverse()
        for candidate in turn:
            rates[candidate].append(measure(candidate))
        half = (len(left) + 1) // 2 if number < rounds - 2 else 0
        kept = ranked(rates, left)[: max(half, _FINALISTS)]
        left = [each for each in candidates if each in kept]
    return rates


def ranked(rates: Mapping[C, Sequence[float]], among: Iterable[C]) -> list[C]:
    """Return candidates by the median of their rates, the best first."""
    return sorted(among, key=lambda candidate: -median(rates[candidate]))


def finalists(rates: Mapping[C, Sequence[float]]) -> list[C]:
    """Return the candidates of the last round that did most, the best first."""
    last = max(map(len, rates.values()))
    ordered = ranked(rates, [c for c in rates if len(rates[c]) == last])
    best = median(rates[ordered[0]])
    return [c for c in ordered[:_FINALISTS] if median(rates[c]) >= _CLOSE * best > 0]


def pareto(points: Mapping[str, list[tuple[float, float]]]) -> list[tuple[float, float, str]]:
    """Return the points (rate, latency, name) that no other one beats in both, by rate."""
    flat = sorted(
        ((rate, latency, name) for name, own in points.items() for rate, latency in own), reverse=True
    )
    front: list[tuple[float, float, str]] = []
    for rate, latency, name in flat:
        if not front or latency < front[-1][1]:
            front.append((rate, latency, name))
    return front[::-1]
