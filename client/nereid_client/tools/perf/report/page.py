"""A run as one HTML page that needs no other file or server. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from nereid_client.tools import charts
from nereid_client.tools.digits import four_digits
from nereid_client.tools.html_page import html_page, section
from nereid_client.tools.perf.compare import Change
from nereid_client.tools.perf.report.text import notes, verdict, winner
from nereid_client.tools.perf.result import Result
from nereid_client.tools.perf.server_share import Share
from nereid_client.tools.perf.slo import read_rules

_STYLE: Final = """
table { font-size: .9rem; }
th, td { text-align: right; padding: .3rem .45rem; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 48rem; } p.soft { margin: .2rem 0; }
tr.best td { font-weight: 600; background: color-mix(in srgb, var(--good) 12%, transparent); }
"""
_PERCENTILES: Final = ("p50", "p90", "p95", "p99", "p99.9")


def page(document: Mapping[str, Any], results: Sequence[Result], changes: Sequence[Change]) -> str:
    title = f"{document['model']} at {document['url']}"
    about = f"{document['server']}, batch {document['batch']}, {document['arrivals']}"
    slo = document["slo"]
    best = winner(slo, results)
    shown = sorted(results, key=lambda result: result.level.value) if slo else results
    limits = _limits(slo["rules"]) if slo else {}
    return chart_page(
        title,
        f'<p class="soft">{escape(about)}; {escape(document["when"])}</p>{_objective(document)}'
        f"{_results(shown, best)}{_changes(changes)}"
        f'<div class="pair">{"".join(_charts(shown, best, limits))}</div>{_shares(shown)}',
    )


def chart_page(title: str, body: str) -> str:
    """Return a page whose charts and tables look as those of this one."""
    return html_page(title, charts.STYLE + _STYLE, body)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], best: int = -1) -> str:
    """Return a table of texts; a row is marked as the best, -1 for none."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(
        f"<tr{' class=best' if number == best else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for number, row in enumerate(rows)
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _limits(rules: str) -> dict[str, float]:
    """Return the limits of an objective in milliseconds, by what they limit."""
    return {rule.name: rule.limit for rule in read_rules(rules) if rule.name != "errors"}


def _objective(document: Mapping[str, Any]) -> str:
    slo, busy = document["slo"], document.get("busy_machine", "")
    told = f'<p class="bad">{escape(busy)}</p>' if busy else ""
    if not slo:
        return told
    return f'<p class="{"good" if slo["rate"] else "bad"}">{escape(verdict(slo))}</p>{told}'


def _results(results: Sequence[Result], best: Result | None) -> str:
    head = ["load", "answers/s", *(f"{name} ms" for name in _PERCENTILES), "max", "service p99"]
    rows = [
        [
            str(result.level),
            _spread(result, "rate", result.rate, 1),
            *(_spread(result, name, result.latency[name], 2) for name in _PERCENTILES),
            f"{result.latency.max:.1f}",
            f"{result.service['p99']:.2f}",
            f"{result.lateness['p99']:.2f}",
            str(result.failed),
            _mark(result, best),
        ]
        for result in results
    ]
    told = "".join(f'<p class="soft">{escape(note)}</p>' for note in notes(results))
    place = next((number for number, result in enumerate(results) if result is best), -1)
    return section("Loads", table([*head, "own lateness p99", "failed", ""], rows, place) + told)


def _spread(result: Result, name: str, value: float, digits: int) -> str:
    """Return a figure with half of its 95% interval, where it has one."""
    if (interval := result.intervals.get(name)) is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} ±{(interval.high - interval.low) / 2:.{digits}f}"


def _mark(result: Result, best: Result | None) -> str:
    kept = "kept" if result is best else ""
    mark = "void" if result.void else "" if result.stable else "unstable"
    return f"{mark} {kept}".strip()


def _changes(changes: Sequence[Change]) -> str:
    rows = [
        [c.load, c.metric, four_digits(c.old), four_digits(c.new), f"{c.percent:+.1f}%", c.verdict]
        for c in changes
    ]
    head = ["load", "figure", "then", "now", "change", "verdict"]
    return section("Beside the earlier run", table(head, rows) if rows else "")


def _charts(results: Sequence[Result], best: Result | None, limits: Mapping[str, float]) -> list[str]:
    answered = [result for result in results if result.curve]
    if not answered:
        return []
    found = []
    if len(answered) > 1:
        found.append(section("Latency over load", _over_load(answered, best, limits)))
    shown = _nearest(answered, best)
    timed = [best] if best is not None else shown
    curves = {str(result.level): [point for point in result.curve if point[0] < 100] for result in shown}
    y = charts.logarithmic([ms for points in curves.values() for _, ms in points], "ms")
    found.append(section("Distribution of latencies", charts.lines(curves, charts.nines("percentile"), y)))
    times = {str(result.level): [(at, p99) for at, _, _, p99 in result.timeline] for result in timed}
    p99 = {name: limit for name, limit in limits.items() if name == "p99"}
    found.append(section("p99 over time", _ms_lines(times, "s", logarithmic=True, limits=p99)))
    return found


def _over_load(results: Sequence[Result], best: Result | None, limits: Mapping[str, float]) -> str:
    """Return latencies over the rate that was asked for, or over the answers a second of closed loops."""
    opened = all(result.level.kind == "rate" for result in results)
    ordered = sorted(results, key=lambda result: result.level.value if opened else result.rate)
    names = [name for name in limits if name in ("mean", *ordered[0].latency.percentiles)]
    names = list(dict.fromkeys(("p50", "p99", *(names or ("p99.9",)))))
    over = {name: [(r.level.value if opened else r.rate, r.latency[name]) for r in ordered] for name in names}
    label = "requests/s asked" if opened else "answers/s"
    marked = [] if best is None else [(best.level.value, best.latency[name]) for name in names]
    return _ms_lines(over, label, bool(limits), limits, marked)


def _nearest(results: Sequence[Result], best: Result | None) -> Sequence[Result]:
    """Return as many results as there are colours: the last, or those next to the best one."""
    if best is None:
        return results[-charts.COLORS :]
    near = sorted(results, key=lambda result: abs(math.log(result.level.value / best.level.value)))
    return [result for result in results if result in near[: charts.COLORS]]


def _ms_lines(
    series: charts.Series,
    label: str,
    logarithmic: bool = False,
    limits: Mapping[str, float] | None = None,
    marked: Sequence[charts.Point] = (),
) -> str:
    values = [*(ms for points in series.values() for _, ms in points), *(limits or {}).values()]
    y = charts.logarithmic(values, "ms") if logarithmic else charts.linear(values, "ms")
    x = charts.linear([x for p in series.values() for x, _ in p], label)
    return charts.lines(series, x, y, limits or {}, marked)


def _shares(results: Sequence[Result]) -> str:
    rows: dict[str, dict[str, float]] = {}
    for result in results:
        share = result.server
        if share is None or not share.requests:
            continue
        outside = max(result.service.mean * 1e3 - share.total_us, 0.0)
        name = _unused(str(result.level), rows)
        rows[name] = {"front, network": outside, **_inside(share)}
        for step, own in share.steps.items():
            rows[_unused(f"\u2003{step}", rows)] = {"front, network": 0.0, **_inside(own)}
    return section("Where the time goes, microseconds of a request", charts.bars(rows, "us") if rows else "")


def _unused(name: str, rows: Mapping[str, object]) -> str:
    """Return a name that no row has: a search measures rates twice, an ensemble has steps alike."""
    while name in rows:
        name += "\u200b"  # which is not seen
    return name


def _inside(share: Share) -> dict[str, float]:
    inside = {
        "queue": share.queue_us,
        "input": share.compute_input_us,
        "infer": share.compute_infer_us,
        "output": share.compute_output_us,
    }
    return {**inside, "other in the model": max(share.total_us - sum(inside.values()), 0.0)}
