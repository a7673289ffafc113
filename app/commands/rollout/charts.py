"""Charts of a rollout as inline SVG; their colours are the page's. Pure."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from app.core.rollout.outcomes import Outcomes
from app.core.rollout.report import Estimate, RolloutFigures
from app.core.rollout.spec import ErrorRule
from app.core.rollout.statistics import microseconds, position
from app.core.rollout.status import RolloutEvent

_Scale = Callable[[float], float]
"""Maps a value to a horizontal position."""

_WIDTH: Final = 420
_LEFT: Final = 44
_RIGHT: Final = _WIDTH - 22


def latency_chart(outcomes: Outcomes) -> str:
    """Return the distribution of both versions' durations, on a logarithmic axis; "" without any."""
    stable, candidate = outcomes.stable.latencies, outcomes.candidate.latencies
    buckets = [*stable, *candidate]
    if not buckets:
        return ""
    low, high = min(buckets) - 2, max(buckets) + 1
    top = max(_most(stable), _most(candidate))

    def across(place: float) -> float:
        return _LEFT + (place - low) / (high - low) * (_RIGHT - _LEFT)

    shapes = [_axis_ms(across, low, high, 170)]
    for version, latencies in (("stable", stable), ("candidate", candidate)):
        if latencies:
            shapes.append(_outline(version, latencies, across, (low, high), top))
    return _svg("Distribution of latencies in milliseconds", 190, shapes)


def _most(latencies: Mapping[int, int]) -> float:
    return max(latencies.values()) / sum(latencies.values()) if latencies else 0.0


def _outline(
    version: str, latencies: Mapping[int, int], across: _Scale, ends: tuple[int, int], top: float
) -> str:
    """Draw the shares of the buckets as steps."""
    total, points = sum(latencies.values()), [f"{across(ends[0]):.1f},170"]
    for bucket in range(ends[0] + 1, ends[1] + 1):
        height = 170 - 150 * latencies.get(bucket, 0) / total / top
        points += [f"{across(bucket - 1):.1f},{height:.1f}", f"{across(bucket):.1f},{height:.1f}"]
    path = " ".join([*points, f"{across(ends[1]):.1f},170"])
    return (
        f'<polygon class="{version}" points="{path}" fill="currentcolor" fill-opacity=".18" '
        'stroke="currentcolor" stroke-width="1.5"/>'
    )


def quantiles_chart(found: RolloutFigures) -> str:
    """Return the quantiles of both versions with their intervals; "" without any."""
    rows = {
        f"p{float(quantile) * 100:g}": (
            found.stable.latency_ms.get(quantile),
            found.candidate.latency_ms.get(quantile),
        )
        for quantile in {**found.stable.latency_ms, **found.candidate.latency_ms}
    }
    values = [one for pair in rows.values() for one in pair if one is not None]
    if not values:
        return ""
    low = math.floor(position(min(one.low for one in values) * 1000)) - 1
    high = math.ceil(position(max(one.high for one in values) * 1000)) + 1

    def across(place: float) -> float:
        return _LEFT + (place - low) / (high - low) * (_RIGHT - _LEFT)

    bottom = 20 + 38 * len(rows)
    shapes = [_axis_ms(across, low, high, bottom)]
    shapes += _whiskers(rows, lambda ms: across(position(ms * 1000)))
    return _svg("Latency quantiles in milliseconds", bottom + 20, shapes)


def errors_chart(found: RolloutFigures, rule: ErrorRule | None) -> str:
    """Return the error rates of both versions with their intervals, and the budget; "" without requests."""
    rates = (found.stable.error_rate, found.candidate.error_rate)
    known = [rate.high for rate in rates if rate is not None]
    if not known:
        return ""
    top = max(*known, rule.budget if rule else 0.0, 1e-6) * 1.1

    def across(rate: float) -> float:
        return _LEFT + rate / top * (_RIGHT - _LEFT)

    shapes = [f'<line class="axis" x1="{_LEFT}" x2="{_RIGHT}" y1="58" y2="58"/>']
    shapes += [_label(across(top * part), 74, f"{top * part:.2%}") for part in (0.0, 0.5, 1.0)]
    if rule:
        place = across(rule.budget)
        shapes.append(
            f'<line x1="{place:.1f}" x2="{place:.1f}" y1="8" y2="58" stroke="var(--soft)" '
            'stroke-dasharray="3 3"/>'
        )
        shapes.append(_label(place, 90, f"budget {rule.budget:.3%}".replace(".000%", "%")))
    return _svg("Error rates", 96, [*shapes, *_whiskers({"": rates}, across)])


def weight_chart(history: Sequence[RolloutEvent], end: float) -> str:
    """Return the weight over time; "" for a history without an extent."""
    if not history or end <= history[0].at:
        return ""
    begin = history[0].at

    def across(at: float) -> float:
        return _LEFT + (min(at, end) - begin) / (end - begin) * (2 * _WIDTH - 22 - _LEFT)

    def down(percent: float) -> float:
        return 110 - percent

    points = [f"{across(begin):.1f},{down(history[0].percent):.1f}"]
    for before, event in pairwise(history):
        points += [f"{across(event.at):.1f},{down(one.percent):.1f}" for one in (before, event)]
    points.append(f"{across(end):.1f},{down(history[-1].percent):.1f}")
    lines = [
        f'<line class="axis" x1="{_LEFT}" x2="{2 * _WIDTH - 22}" y1="{down(at)}" y2="{down(at)}"/>'
        f'<text x="{_LEFT - 6}" y="{down(at) + 4}" text-anchor="end">{at} %</text>'
        for at in (0, 50, 100)
    ]
    curve = (
        f'<polyline class="candidate" points="{" ".join(points)}" fill="none" stroke="currentcolor" '
        'stroke-width="2"/>'
    )
    return _svg("Weight of the candidate in percent over time", 124, [*lines, curve], 2 * _WIDTH)


def _whiskers(rows: Mapping[str, tuple[Estimate | None, Estimate | None]], across: _Scale) -> Iterator[str]:
    for number, (name, pair) in enumerate(rows.items()):
        top = 24 + 38 * number
        yield f'<text x="{_LEFT - 8}" y="{top + 10}" text-anchor="end">{name}</text>'
        for version, estimate, y in zip(("stable", "candidate"), pair, (top, top + 14), strict=True):
            if estimate is not None:
                low, value, high = (across(at) for at in (estimate.low, estimate.value, estimate.high))
                yield (
                    f'<g class="{version}"><line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" '
                    'stroke="currentcolor" stroke-width="5" stroke-opacity=".35" stroke-linecap="round"/>'
                    f'<circle cx="{value:.1f}" cy="{y}" r="4" fill="currentcolor"/></g>'
                )


def _axis_ms(across: _Scale, low: float, high: float, y: float) -> str:
    """Draw an axis between two positions of buckets, with its durations."""
    marks = [f'<line class="axis" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>']
    for ms in _ticks(microseconds(low) / 1000, microseconds(high) / 1000):
        marks.append(_label(across(position(ms * 1000)), y + 15, f"{ms:g} ms"))
    return "".join(marks)


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers of a logarithmic axis, about five."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [f * 10.0**e for e in exponents for f in factors if low <= f * 10.0**e <= high]
        if len(ticks) <= 6:
            return ticks
    return ticks[:: len(ticks) // 5]


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>'


def _svg(about: str, height: float, shapes: Iterable[str], width: int = _WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{about}">{"".join(shapes)}</svg>'
