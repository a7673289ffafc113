"""Charts as inline SVG, in colours of `STYLE`; the pointer shows their figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from nereid_client.tools.digits import all_digits, four_digits

Point = tuple[float, float]
Series = Mapping[str, Sequence[Point]]
"""Points of each line by its name."""
Intervals = Mapping[str, Mapping[str, tuple[float, float, float]]]
"""Of each row by name, for each series by name: the low end, the value, the high end."""

STYLE: Final = """
:root { --c0: #3767a6; --c1: #c2571a; --c2: #2c7a4b; --c3: #8a4fa3; --c4: #a68a1a; --c5: #1b8a8f;
  --c6: #b0386a; --c7: #6a6f75; }
@media (prefers-color-scheme: dark) { :root { --c0: #8fb3dc; --c1: #f0995a; --c2: #67c08b; --c3: #c79ad8;
  --c4: #d9c15a; --c5: #62c4c9; --c6: #e68ab0; --c7: #9aa0a6; } }
.line { fill: none; stroke: currentcolor; stroke-width: 2; }
.interval { stroke: currentcolor; stroke-width: 5; stroke-opacity: .35; stroke-linecap: round; }
circle, rect { fill: currentcolor; }
.limit { stroke: var(--bad); stroke-dasharray: 6 4; }
.marked { fill: none; stroke: currentcolor; stroke-width: 2; }
.legend { margin: .5rem 0 0; } .legend .key { margin-right: 1rem; }
""" + " ".join(f".c{i} {{ color: var(--c{i}); }}" for i in range(8))
"""For the page that has the charts."""
_WIDTH: Final = 640
_HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 620, 14, 214
COLORS: Final = 8
_NINES: Final = 5.0
_LETTERS: Final = 22


class Axis(NamedTuple):
    """Where values go: `at` maps one to a place between 0 and 1; `ticks` are values with their texts."""

    at: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]
    label: str


def linear(values: Sequence[float], label: str) -> Axis:
    """Return an axis from 0 to the largest value."""
    top = max(values, default=0.0) or 1.0
    step = _round_step(top / 5)
    count = math.ceil(top / step)
    ticks = [(i * step, all_digits(i * step)) for i in range(count + 1)]
    return Axis(lambda value: value / (count * step), ticks, label)


def logarithmic(values: Sequence[float], label: str) -> Axis:
    """Return an axis from the smallest value to the largest."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    high = max(high, low + 1)
    ticks = [(10.0**e, all_digits(10.0**e)) for e in range(low, high + 1)]
    if high - low < 3:
        ticks += [(f * 10.0**e, all_digits(f * 10.0**e)) for e in range(low, high) for f in (2, 5)]

    def at(value: float) -> float:
        return (math.log10(max(value, 10.0**low)) - low) / (high - low)

    return Axis(at, ticks, label)


def nines(label: str) -> Axis:
    """Return an axis of percentiles on which 90, 99 and 99.9 are at the same distance."""

    def at(percent: float) -> float:
        return min(-math.log10(max(1 - percent / 100, 10**-_NINES)) / _NINES, 1.0)

    return Axis(at, [(p, f"{p:g}") for p in (0, 50, 90, 99, 99.9, 99.99)], label)


def lines(
    series: Series,
    x: Axis,
    y: Axis,
    limits: Mapping[str, float] | None = None,
    marked: Sequence[Point] = (),
    dots: bool = True,
) -> str:
    """Return a line for each series, with a legend.

    Args:
        limits: values of y by name, drawn as dashed lines.
        marked: points with a circle around them.
        dots: each point of a short line has a dot.
    """
    shapes = [*_grid(x, y), *_limits(limits or {}, y)]
    shapes += [
        f'<circle class="marked" cx="{_across(x.at(a)):.1f}" cy="{_down(y.at(b)):.1f}" r="7"/>'
        for a, b in marked
    ]
    for number, (name, points) in enumerate(series.items()):
        color = f"c{number % COLORS}"
        places = [(_across(x.at(a)), _down(y.at(b))) for a, b in points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        shapes.append(f'<polyline class="line {color}" points="{path}"/>')
        radius = 3 if len(points) <= 12 else 1.5
        if dots and len(points) <= 100:
            for (a, b), (left, top) in zip(points, places, strict=True):
                about = escape(f"{name}: {four_digits(b)} {y.label} at {four_digits(a)} {x.label}")
                circle = f'<circle class="{color}" cx="{left:.1f}" cy="{top:.1f}" r="{radius}">'
                shapes.append(f"{circle}<title>{about}</title></circle>")
    return _svg(f"{y.label} over {x.label}", _HEIGHT, shapes) + legend(list(series))


def bars(rows: Mapping[str, Mapping[str, float]], label: str) -> str:
    """Return a bar for each row, made of its parts, with a legend."""
    top = max((sum(parts.values()) for parts in rows.values()), default=0.0) or 1.0
    shapes, left = [], 150
    for number, (name, parts) in enumerate(rows.items()):
        y, place = 8 + 30 * number, float(left)
        shown = f"{escape(_short(name))}<title>{escape(name)}</title>"
        shapes.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{shown}</text>')
        for color, (part, value) in enumerate(parts.items()):
            width = value / top * (_RIGHT - left - 60)
            about = escape(f"{name}, {part}: {four_digits(value)} {label}")
            shapes.append(
                f'<rect class="c{color}" x="{place:.1f}" y="{y}" width="{width:.1f}" height="20">'
                f"<title>{about}</title></rect>"
            )
            place += width
        shapes.append(f'<text x="{place + 6:.1f}" y="{y + 15}">{_figure(sum(parts.values()))}</text>')
    first = next(iter(rows.values()), {})
    return _svg(label, 16 + 30 * len(rows), shapes) + legend(list(first))


def intervals(rows: Intervals, x: Axis, limits: Mapping[str, float] | None = None) -> str:
    """Return a value with its interval for each row and series, with a legend.

    Args:
        limits: values of x by name, drawn as dashed lines.
    """
    bottom = 22 + 34 * len(rows)
    shapes = [f'<line class="axis" x1="{_LEFT}" x2="{_RIGHT}" y1="{bottom}" y2="{bottom}"/>']
    shapes += [_under(x.at(value), bottom + 16, text) for value, text in x.ticks]
    for name, value in (limits or {}).items():
        left = _across(x.at(value))
        shapes.append(f'<line class="limit" x1="{left:.1f}" x2="{left:.1f}" y1="14" y2="{bottom}"/>')
        shapes.append(_under(x.at(value), 10, f"{name} {four_digits(value)}"))
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    for number, (row, of_row) in enumerate(rows.items()):
        top = 26 + 34 * number
        shapes.append(f'<text x="{_LEFT - 8}" y="{top + 10}" text-anchor="end">{escape(row)}</text>')
        for name, (low, value, high) in of_row.items():
            y, color = top + 14 * names.index(name), f"c{names.index(name)}"
            a, b, c = (_across(x.at(each)) for each in (low, value, high))
            between = f"({four_digits(low)} to {four_digits(high)})"
            about = escape(f"{row} {name}: {four_digits(value)} {between} {x.label}".strip())
            shapes.append(
                f'<g class="{color}"><line class="interval" x1="{a:.1f}" x2="{c:.1f}" y1="{y}" y2="{y}"/>'
                f'<circle cx="{b:.1f}" cy="{y}" r="4"/><title>{about}</title></g>'
            )
    return _svg(x.label, bottom + 26, shapes) + legend(names)


def _under(place: float, y: float, text: str) -> str:
    """Return a text below or above a place of the x axis."""
    return f'<text x="{_across(place):.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def _figure(value: float) -> str:
    """Return a figure with three digits that count; of a large one all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else all_digits(value, 3)


def _short(name: str) -> str:
    """Return a name as far as it has room beside a bar."""
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"


def legend(names: Sequence[str]) -> str:
    """Return the names of colours, in their order."""
    keys = (f'<span class="key c{i % COLORS}">{escape(name)}</span>' for i, name in enumerate(names))
    return f'<p class="legend">{" ".join(keys)}</p>'


def _grid(x: Axis, y: Axis) -> Iterator[str]:
    for value, text in y.ticks:
        top = _down(y.at(value))
        yield f'<line class="axis" x1="{_LEFT}" x2="{_RIGHT}" y1="{top:.1f}" y2="{top:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{top + 4:.1f}" text-anchor="end">{text}</text>'
    for value, text in x.ticks:
        yield _under(x.at(value), _BOTTOM + 16, text)
    middle = (_LEFT + _RIGHT) / 2
    yield f'<text x="{middle}" y="{_BOTTOM + 36}" text-anchor="middle">{escape(x.label)}</text>'
    yield f'<text x="{_LEFT}" y="{_TOP - 4}">{escape(y.label)}</text>'


def _limits(limits: Mapping[str, float], y: Axis) -> Iterator[str]:
    for name, value in limits.items():
        top = _down(y.at(value))
        yield f'<line class="limit" x1="{_LEFT}" x2="{_RIGHT}" y1="{top:.1f}" y2="{top:.1f}"/>'
        text = f"{name} &lt; {all_digits(value)}"
        yield f'<text x="{_LEFT + 4}" y="{top - 4:.1f}">{text}</text>'


def _across(place: float) -> float:
    return _LEFT + place * (_RIGHT - _LEFT)


def _down(place: float) -> float:
    return _BOTTOM - place * (_BOTTOM - _TOP - 4)


def _round_step(step: float) -> float:
    """Return the smallest of 1, 2, 5, 10, ... that is not below a step."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * f for f in (1, 2, 5, 10) if power * f >= step * 0.999)


def _svg(about: str, height: float, shapes: Sequence[str]) -> str:
    inside = "".join(shapes)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(about)}">{inside}</svg>'
