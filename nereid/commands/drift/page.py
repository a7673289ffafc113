"""Drift as a page: both distributions of each feature side by side. Pure."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from app.core.drift.distances import Distances
from app.core.drift.reference import Feature
from app.core.drift.status import DriftStatus, FeatureStatus
from nereid.commands.drift.text import about, headline, ordered, quality
from nereid_client.tools import charts
from nereid_client.tools.html_page import html_page, section

_STYLE: Final = """
.pair { grid-template-columns: repeat(auto-fit, minmax(23rem, 1fr)); margin-top: 1rem; }
.pair section { margin-top: 0; }
svg .tick { font-size: 9px; }
"""
_MOST: Final = 100
"""Features on a page, those with the most evidence first."""
_WIDTH, _HEIGHT, _BOTTOM, _LEFT = 420, 170, 130, 34
_MOST_CATEGORIES: Final = 20
_LABEL: Final = 9


def page(status: DriftStatus) -> str:
    """Return the page."""
    tone = "bad" if status.since else "good"
    head = f'<p class="{tone}">{escape(headline(status))}</p><p class="soft">{escape(about(status))}</p>'
    legend = charts.legend(["reference", "recent requests"])
    cards = "".join(_card(each) for each in ordered(status)[:_MOST])
    notes = "".join(f"<p>{escape(line)}</p>" for line in quality(status))
    level = f"An alarm from evidence {1 / status.rules.alpha:,.0f} on; distances judge nothing."
    body = f'{head}{legend}<p class="soft">{level}</p><div class="pair">{cards}</div>'
    title = f"Drift of {status.model} version {status.version}"
    return html_page(title, charts.STYLE + _STYLE, body + section("Data quality", notes))


def _card(status: FeatureStatus) -> str:
    mark = ' <span class="bad">changed</span>' if status.alarmed else ""
    side = "output" if status.is_output else "input"
    text = f"evidence {status.evidence:,.3g}{_distances(status.distances)}"
    note = f'<p class="soft">{side} {escape(status.tensor)}; {text}{mark}</p>'
    return section(status.feature.name, _chart(status) + note)


def _distances(found: Distances | None) -> str:
    if found is None:
        return ""
    named = {"PSI": found.psi, "JS": found.js, "Wasserstein": found.wasserstein, "KS": found.ks}
    return "".join(f"; {name} {value:.3f}" for name, value in named.items() if value is not None)


def _chart(status: FeatureStatus) -> str:
    """Return a pair of bars for each cell that has any rows."""
    feature = status.feature
    before, now = _shares(feature.counts), _shares(status.counts)
    cells = [cell for cell in range(len(before)) if before[cell] or now[cell] or _is_bin(feature, cell)]
    if feature.is_category:
        cells = cells[:_MOST_CATEGORIES]
    top = max((max(before[cell], now[cell]) for cell in cells), default=0.0) or 1.0
    step = (_WIDTH - _LEFT) / max(len(cells), 1)
    shapes = [f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>']
    shapes.append(f'<text x="2" y="14">{100 * top:.3g} %</text>')
    names = _names(feature)
    for place, cell in enumerate(cells):
        left = _LEFT + place * step
        for number, shares in enumerate((before, now)):
            shapes.append(
                _bar(left + number * step * 0.42, step * 0.4, shares[cell] / top, number, names[cell])
            )
        shapes += _label(names[cell], left + step / 2, place, len(cells))
    about = escape(f"shares of {feature.name}")
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{about}">{"".join(shapes)}</svg>'


def _bar(left: float, width: float, share: float, color: int, name: str) -> str:
    height = share * (_BOTTOM - 20)
    return (
        f'<rect class="c{color}" x="{left:.1f}" y="{_BOTTOM - height:.1f}" width="{width:.1f}"'
        f' height="{height:.1f}"><title>{escape(name)}</title></rect>'
    )


def _label(name: str, at: float, place: int, cells: int) -> Iterator[str]:
    if cells <= 8 or place % max(cells // 6, 1) == 0:
        short = escape(name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…")
        yield f'<text class="tick" x="{at:.1f}" y="{_BOTTOM + 14}" text-anchor="middle">{short}</text>'


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts) or 1
    return [count / total for count in counts]


def _is_bin(feature: Feature, cell: int) -> bool:
    return not feature.is_category and 3 <= cell < len(feature.counts) - 2


def _names(feature: Feature) -> list[str]:
    if feature.is_category:
        return [*feature.values, "(other)", "(new)"]
    edges = feature.edges
    bins = [f"{low:.3g}" for low in edges[:-1]]
    return ["NaN", "far below", "below", *bins, "above", "far above"]
