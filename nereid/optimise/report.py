"""What a search has found: on a terminal and as a page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from nereid.optimise.search import State
from nereid.optimise.trials.verdict import Outcome
from nereid_client.tools import charts
from nereid_client.tools.html_page import section
from nereid_client.tools.perf.report.page import chart_page, table

HEAD: Final = ("candidate", ">times as fast", ">agree", ">rows", ">near ties", ">ms", ">file, MB", "", "why")
WORST: Final = ("candidate", "row", "why")
SERVED: Final = ("form", ">answers/s", ">times as much")
_WORST: Final = 10
_ORDER: Final = ("fits", "inconclusive", "refused", "failed", "skipped")


def ordered(state: State) -> list[Outcome]:
    """Return the candidates, those that fit first, the fastest first."""
    return sorted(state.outcomes.values(), key=lambda each: (_ORDER.index(each.status), -each.seen.ratio))


def rows(state: State) -> list[list[str]]:
    """Return a row of texts for each candidate."""
    return [_row(each) for each in ordered(state)]


def _row(outcome: Outcome) -> list[str]:
    seen = outcome.seen
    figures = [""] * 6
    if seen.compared:
        figures = [
            f"{seen.ratio:.2f}",
            f"{seen.agreement:.2%}",
            f"{seen.counted:,}",
            f"{seen.near_ties:,}",
            f"{seen.candidate_ms:.2f} of {seen.present_ms:.2f}",
            f"{seen.file_mb:.1f} of {seen.present_file_mb:.1f}" if seen.file_mb else "",
        ]
    return [outcome.name, *figures, outcome.status, outcome.why]


def worst_rows(state: State) -> list[list[str]]:
    """Return the ten rows that are furthest from the rules, of all candidates that were compared."""
    found = [(bad.severity, each.name, bad) for each in state.outcomes.values() for bad in each.seen.worst]
    found.sort(key=lambda each: (-each[0], each[1], each[2].row))
    return [[name, bad.row, bad.why] for _, name, bad in found[:_WORST]]


def printed(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """Return rows as a table for a terminal; a name that begins with > is of a column of numbers."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    last = len(head) - 1
    for place, name in enumerate(head):
        made.add_column(
            name.lstrip(">"), justify="right" if name.startswith(">") else "left", no_wrap=place < last
        )
    for line in lines:
        made.add_row(*line)
    return made


def page(title: str, sentences: Sequence[str], state: State, served: Sequence[Sequence[str]]) -> str:
    """Return the page.

    Args:
        served: rows of `SERVED`; none without a measurement on all processors.
    """
    about = "".join(f'<p class="soft">{escape(text)}</p>' for text in sentences)
    return chart_page(
        title,
        about
        + section("Candidates", table(_names(HEAD), rows(state)))
        + f'<div class="pair">{"".join(_charts(state))}</div>'
        + (section("On all processors, in turn", table(_names(SERVED), served)) if served else "")
        + section("The worst rows", table(WORST, worst_rows(state)) if worst_rows(state) else ""),
    )


def _names(head: Sequence[str]) -> list[str]:
    return [name.lstrip(">") for name in head]


def _charts(state: State) -> Iterator[str]:
    seen = {each.name: each.seen for each in ordered(state) if each.seen.compared}
    if not seen:
        return
    allowed = 100 * state.key.wanted.allowed
    points = {name: (found.ratio, 100 * (1 - found.agreement)) for name, found in seen.items()}
    x = charts.linear([1.0, *(a for a, _ in points.values())], "times as fast")
    y = charts.linear([0.0, 2 * allowed, *(b for _, b in points.values())], "% of the rows differ")
    front = _front(points)
    series: Mapping[str, Sequence[tuple[float, float]]] = {
        **({"no other is better in both": front} if len(front) > 1 else {}),
        **{name: [point] for name, point in points.items()},
    }
    limits = {"allowed": allowed} if allowed else {}
    yield section("Speed and agreement", charts.lines(series, x, y, limits, marked=front))
    first = next(iter(seen.values()))
    bars = {"present": {"processor time of a request": first.present_ms}}
    bars |= {name: {"processor time of a request": found.candidate_ms} for name, found in seen.items()}
    yield section("Processor time of a request, one thread", charts.bars(bars, "ms"))


def _front(points: Mapping[str, tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (speed, disagreement) that no other one beats in both, by speed."""
    found: list[tuple[float, float]] = []
    for ratio, differing in sorted(points.values(), key=lambda point: (-point[0], point[1])):
        if not found or differing < found[-1][1]:
            found.append((ratio, differing))
    return found[::-1]
