"""A replay as one HTML page that needs no other file or server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from nereid_client.tools import charts
from nereid_client.tools.html_page import section
from nereid_client.tools.perf.report.page import chart_page, table
from nereid_client.tools.replay.session import Outcome
from nereid_client.tools.replay.text import (
    LATENCIES,
    OUTPUTS,
    WORST,
    about,
    latency_rows,
    notes,
    output_rows,
    worst_rows,
)
from nereid_client.tools.replay.verdict import EQUAL, Verdict


def page(outcome: Outcome, found: Verdict, when: str) -> str:
    """Return the page; `when` is when the replay ended."""
    told = "; ".join(found.why)
    color = "good" if found.status == EQUAL else "bad"
    head = "".join(f'<p class="soft">{escape(line)}</p>' for line in (*about(outcome), when))
    answer = f'<p class="{color}"><b>{escape(found.word)}</b>{escape(": " + told if told else "")}</p>'
    remarks = "".join(f'<p class="soft">{escape(line)}</p>' for line in notes(outcome))
    return chart_page(
        f"Replay at {outcome.options.address.url}",
        head
        + answer
        + _section("Outputs", OUTPUTS, list(output_rows(outcome)))
        + _section("The worst rows", WORST, worst_rows(outcome))
        + _section("Latency", LATENCIES, list(latency_rows(outcome)))
        + f'<div class="pair">{"".join(_charts(outcome))}</div>'
        + section("Notes", remarks),
    )


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return section(title, table([name.lstrip(">") for name in head], rows) if rows else "")


def _charts(outcome: Outcome) -> Iterator[str]:
    curves = outcome.latencies.curves or {}
    values = [ms for points in curves.values() for _, ms in points]
    if values:
        names = {"then": outcome.beside or "recorded", "now": "now"}
        shown = {names[name]: points for name, points in curves.items()}
        drawn = charts.lines(shown, charts.nines("percentile"), charts.logarithmic(values, "ms"))
        yield section("Distribution of latencies", drawn)
    timelines = {"now": outcome.now.result.timeline}
    if outcome.then is not None:
        timelines = {outcome.beside or "beside": outcome.then.result.timeline, **timelines}
    for title, place, unit in (("Requests over time", 1, "answers/s"), ("p99 over time", 3, "ms")):
        series = {name: [(each[0], each[place]) for each in points] for name, points in timelines.items()}
        at = [x for points in series.values() for x, _ in points]
        if len(at) > 1:
            y = charts.linear([value for points in series.values() for _, value in points], unit)
            yield section(title, charts.lines(series, charts.linear(at, "s"), y))
    worst = {
        f"{model} {name}": {fault: float(number) for fault, number in counts.faults.items()}
        for model, comparison in outcome.differences.models.items()
        for name, counts in comparison.outputs.items()
        if counts.faults
    }
    if worst:
        yield section("Differing answers by output", charts.bars(_filled(worst), "answers"))


def _filled(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return rows that all have the same parts, so that a part has one colour."""
    parts = dict.fromkeys(name for row in rows.values() for name in row)
    return {name: {part: row.get(part, 0.0) for part in parts} for name, row in rows.items()}
