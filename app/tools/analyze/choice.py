"""Which candidate is measured next, and when enough have been. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from app.tools.analyze.space import Candidate

_BETTER = 0.97
"""A candidate that is predicted to do less than this share of the best measured one is not measured."""
_CLOSE = 0.9
"""A measured candidate that did at least this share of the best one may be the better one all the same."""
_FINALISTS = 3


def next_candidate(
    predicted: Mapping[Candidate, float], measured: Mapping[Candidate, float]
) -> Candidate | None:
    """Return the most promising candidate that has not been measured; None if none may be the best.

    Predictions are corrected by what the measured ones of the same instances and threads did, or else by
    what all did: the model does not know what the server takes for itself.
    """
    best = max(measured.values(), default=0.0)
    left = {c: corrected(c, predicted, measured) for c in predicted if c not in measured}
    if not left:
        return None
    chosen = max(left, key=lambda candidate: left[candidate])
    return chosen if left[chosen] >= _BETTER * best and left[chosen] > 0 else None


def corrected(
    candidate: Candidate, predicted: Mapping[Candidate, float], measured: Mapping[Candidate, float]
) -> float:
    """Return a prediction times what measured ones were of theirs."""
    ratios = {c: measured[c] / predicted[c] for c in measured if predicted.get(c)}
    near = [ratio for c, ratio in ratios.items() if c[2:] == candidate[2:]] or list(ratios.values())
    return predicted[candidate] * (median(near) if near else 1.0)


def explore(
    predicted: Mapping[Candidate, float],
    measured: dict[Candidate, float],
    measure: Callable[[Candidate, float, float], float],
    most: int,
) -> None:
    """Measure the most promising candidates, at most so many, and add them to `measured`.

    Args:
        measure: returns the rate of a candidate, given its expected one and the rate that it has to keep
            to be of interest, so that those that are no better cost little; 0 for the first one.
    """
    for _ in range(most):
        chosen = next_candidate(predicted, measured)
        if chosen is None:
            return
        floor = max(measured.values(), default=0.0) / _BETTER
        measured[chosen] = measure(chosen, corrected(chosen, predicted, measured), floor)


def finalists(measured: Mapping[Candidate, float]) -> list[Candidate]:
    """Return the candidates that are measured against each other in the end, the best one first."""
    ordered = sorted(measured, key=lambda candidate: -measured[candidate])
    return [c for c in ordered[:_FINALISTS] if measured[c] >= _CLOSE * measured[ordered[0]]]


def winner(rounds: Mapping[Candidate, Sequence[float]], best: Candidate) -> Candidate:
    """Return which candidate did most in rounds in turn: another one than `best` if it is clearly better."""
    middle = {candidate: median(rates) for candidate, rates in rounds.items()}
    first = max(middle, key=lambda candidate: middle[candidate])
    return first if _BETTER * middle[first] > middle[best] else best


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
