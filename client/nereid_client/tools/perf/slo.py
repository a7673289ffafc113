"""Objectives such as "p99<20ms,errors<0.1%", and whether results keep them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nereid_client.tools.perf.options import PerfError
from nereid_client.tools.perf.result import Result

_RULE: Final = re.compile(r"(p\d+(?:\.\d+)?|mean|avg|max|errors)\s*<=?\s*(\d+(?:\.\d+)?)\s*(us|ms|s|%)?")
_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3, None: 1.0}
_KEPT_UP: Final = 0.95


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


def read_rules(text: str) -> tuple[Rule, ...]:
    """Return the rules of an objective. Without one of errors, one in a thousand may fail.

    Raises:
        PerfError: it cannot be read.
    """
    rules = []
    for part in text.split(","):
        found = _RULE.fullmatch(part.strip())
        if found is None or (found[1] == "errors") != (found[3] == "%") or _beyond(found[1]):
            raise PerfError(f"--slo: cannot read '{part}': give e.g. p99<20ms,errors<0.1%")
        name = "mean" if found[1] == "avg" else found[1]
        limit = float(found[2]) / 100 if name == "errors" else float(found[2]) * _MS[found[3]]
        rules.append(Rule(name, limit))
    if not any(rule.name == "errors" for rule in rules):
        rules.append(Rule("errors", 0.001))
    return tuple(rules)


def _beyond(name: str) -> bool:
    """Return whether it is a percentile that there is none of."""
    return name.startswith("p") and float(name[1:]) > 100


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


def excess(rules: Sequence[Rule], result: Result) -> float:
    """Return the logarithm of the worst value as a share of its limit, below 0 where all are kept."""
    if result.rate < _KEPT_UP * result.offered and not result.failed:
        return math.inf
    shares = [rule.value(result) / rule.limit if rule.limit else math.inf for rule in rules]
    worst = max(shares, default=0.0)
    return math.log(worst) if worst > 0 else -math.inf
