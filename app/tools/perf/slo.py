"""Objectives such as "p99<20ms,errors<0.1%", and the search of the highest rate that keeps them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from app.tools.perf.options import PerfError
from app.tools.perf.result import Result

_RULE: Final = re.compile(r"(p\d+(?:\.\d+)?|mean|avg|max|errors)\s*<=?\s*(\d+(?:\.\d+)?)\s*(us|ms|s|%)?")
_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3, None: 1.0}
_KEPT_UP: Final = 0.95
_LOWEST: Final = 0.2
_RETREATS: Final = 5
_CHANCES: Final = 2
_LARGEST_STEP: Final = 4.0
_STEP_DOWN: Final = 0.95


@dataclass(frozen=True)
class Rule:
    """An upper limit: of "errors" a share, of anything else milliseconds."""

    name: str
    limit: float

    def value(self, result: Result) -> float:
        """Return what is limited."""
        if self.name == "errors":
            return result.failed / max(result.requests, 1)
        if self.name == "max":
            return result.latency.max
        return result.latency[self.name]


@dataclass(frozen=True)
class Found:
    """The result of a search: the rate, 0 if none keeps the objective; rates tried, and whether they did."""

    rate: float
    tried: tuple[tuple[float, bool], ...]


def read_rules(text: str) -> tuple[Rule, ...]:
    """Return the rules of an objective. Without one of errors, one in a thousand may fail.

    Raises:
        PerfError: it cannot be read.
    """
    rules = []
    for part in text.split(","):
        found = _RULE.fullmatch(part.strip())
        if found is None or (found[1] == "errors") != (found[3] == "%"):
            raise PerfError(f"--slo: cannot read '{part}': give e.g. p99<20ms,errors<0.1%")
        name = "mean" if found[1] == "avg" else found[1]
        limit = float(found[2]) / 100 if name == "errors" else float(found[2]) * _MS[found[3]]
        rules.append(Rule(name, limit))
    if not any(rule.name == "errors" for rule in rules):
        rules.append(Rule("errors", 0.001))
    return tuple(rules)


def percentiles(rules: Sequence[Rule]) -> list[float]:
    """Return the percentiles that rules need."""
    return [float(rule.name[1:]) for rule in rules if rule.name.startswith("p")]


def broken(rules: Sequence[Rule], result: Result) -> str:
    """Return which rule a result breaks; "" for none. A server that falls behind breaks any."""
    if result.rate < _KEPT_UP * result.offered and not result.failed:
        return f"{result.rate:.0f}/s of {result.offered:.0f}/s"
    for rule in rules:
        value = rule.value(result)
        if not value < rule.limit:
            unit = f"{100 * value:.2f}%" if rule.name == "errors" else f"{value:.2f} ms"
            return f"{rule.name} {unit}"
    return ""


def search(
    keeps: Callable[[float], bool],
    first: float,
    precision: float = 0.05,
    factor: float = 2.0,
    confirmations: int = 3,
) -> Found:
    """Return the highest rate that `keeps` says yes to: by doubling, then by halves, then three times more.

    Args:
        keeps: measures a rate; asked twice before a rate counts as not kept.
        first: the rate to begin with.
        precision: the share up to which the rate is found.
        factor: between rates, until one is kept and the next is not.
        confirmations: how often the rate found has to be kept once more.
    """
    tried: list[tuple[float, bool]] = []

    def asked(rate: float) -> bool:
        # Once more after a no: a pause of the machine is no limit of the server.
        for _ in range(_CHANCES):
            tried.append((rate, keeps(rate)))
            if tried[-1][1]:
                return True
        return False

    low, high = _bracket(asked, first, factor)
    if not low:
        return Found(0.0, tuple(tried))
    while high / low > 1 + precision:
        middle = _rounded((low * high) ** 0.5)
        low, high = (middle, high) if asked(middle) else (low, middle)
    for _ in range(_RETREATS):
        if all(asked(low) for _ in range(confirmations)):
            return Found(low, tuple(tried))
        low = _rounded(low * _STEP_DOWN)
    return Found(0.0, tuple(tried))


def _rounded(rate: float) -> float:
    """Return a rate that is easy to read."""
    return float(f"{rate:.3g}")


def _bracket(asked: Callable[[float], bool], first: float, factor: float) -> tuple[float, float]:
    """Return a rate that is kept, and so many times it, which is not; 0 if none is kept."""
    rate = _rounded(first)
    if asked(rate):
        while asked(_rounded(factor * rate)):
            rate = _rounded(factor * rate)
        return rate, _rounded(factor * rate)
    while rate > _LOWEST:
        lower = _rounded(rate / factor)
        if asked(lower):
            return lower, rate
        rate, factor = lower, min(factor**2, _LARGEST_STEP)  # far off
    return 0.0, 0.0
