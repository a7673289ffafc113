"""Whether a replay takes longer than what it is compared with, by the same rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from nereid_client.tools.perf.figures import percentile

_PARTS: Final = 10
_STUDENT: Final = 2.262
"""97.5% quantile of Student's t with 9 degrees of freedom."""
_FEWEST: Final = {"p50": 50, "p99": 1000}
"""Rows from which a tenth of them has the percentile."""
_LEAST_MS: Final = 0.1
"""Smaller differences are of clients' wake-ups."""
_TINY: Final = 1e-6
"""Milliseconds that stand for none."""


@dataclass(frozen=True)
class Figure:
    """A percentile of both, in ms.

    Attributes:
        ratio: now by then, the mean of ten parts of the rows; 0 where there are too few.
        low, high: its 95% interval.
        verdict: "worse", "better" or "same"; "" for none.
    """

    name: str
    then: float
    now: float
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    verdict: str = ""


@dataclass(frozen=True)
class Latencies:
    """How long the rows took that both have answered, in ms.

    Attributes:
        rows: of both.
        why: there is no verdict; "" if there is one.
        way_ms: what was taken off the latencies of now, which those on a tape do not have.
        curves: percentiles of both, for a chart, by which of both.
    """

    rows: int
    figures: tuple[Figure, ...]
    why: str = ""
    way_ms: float = 0.0
    curves: Mapping[str, Sequence[tuple[float, float]]] | None = None

    @property
    def worse(self) -> bool:
        """Whether a percentile is worse."""
        return any(figure.verdict == "worse" for figure in self.figures)

    def as_json(self) -> dict[str, Any]:
        """Return the fields, for `json.dumps`."""
        return asdict(self)


def latencies(
    then_ns: Sequence[int], now_ns: Sequence[int], threshold: float, why: str = "", way_ns: int = 0
) -> Latencies:
    """Compare latencies of the same rows, in the order of their arrival.

    A percentile is worse when even the low end of its ratio's interval is so by more than the threshold, a
    share, and it is no matter of microseconds.

    Args:
        why: no verdict is wanted, for this reason.
        way_ns: to be taken off what a client has measured, down to nothing.
    """
    then = np.array(then_ns, np.float64) / 1e6
    now = np.maximum(np.array(now_ns, np.float64) - way_ns, 0.0) / 1e6
    number = len(then)
    found = []
    for name in ("p50", "p90", "p99"):
        percent = float(name[1:])
        figure = Figure(name, percentile(then, percent), percentile(now, percent)) if number else None
        if figure is not None:
            found.append(_judged(figure, then, now, percent, threshold, bool(why)))
    top = [Figure("max", float(then.max()), float(now.max()))] if number else []
    if not why and number < min(_FEWEST.values()):
        why = f"{number} rows are too few for a verdict: it takes {min(_FEWEST.values())}"
    return Latencies(number, (*found, *top), why, way_ns / 1e6, _curves(then, now))


def _judged(figure: Figure, then: Any, now: Any, percent: float, threshold: float, silent: bool) -> Figure:
    if silent or len(then) < _FEWEST.get(figure.name, 1 << 62):
        return figure
    parts = zip(np.array_split(then, _PARTS), np.array_split(now, _PARTS), strict=True)
    # Of logarithms: twice and half as long are as far from equal.
    logs = [np.log(max(percentile(b, percent), _TINY) / max(percentile(a, percent), _TINY)) for a, b in parts]
    half = _STUDENT * float(np.std(logs, ddof=1)) / _PARTS**0.5
    ratio, low, high = (float(np.exp(np.mean(logs) + by)) for by in (0.0, -half, half))
    verdict = "same"
    if abs(figure.now - figure.then) > _LEAST_MS:
        if low > 1 + threshold and figure.now > figure.then:
            verdict = "worse"
        elif high < 1 / (1 + threshold) and figure.now < figure.then:
            verdict = "better"
    return Figure(figure.name, figure.then, figure.now, ratio, low, high, verdict)


def _curves(then: Any, now: Any) -> dict[str, list[tuple[float, float]]]:
    if not len(then):
        return {}
    percents = [*range(0, 90, 5), *(90 + i / 2 for i in range(20))]
    return {
        name: [(float(p), percentile(values, p)) for p in percents]
        for name, values in (("then", then), ("now", now))
    }
