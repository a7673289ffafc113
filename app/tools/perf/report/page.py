"""A run as one HTML page that needs no other file or server. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from app.tools.html_page import html_page, section
from app.tools.perf.compare import Change
from app.tools.perf.report import charts
from app.tools.perf.report.text import notes
from app.tools.perf.result import Result

_STYLE: Final = """
:root { --c0: #3767a6; --c1: #c2571a; --c2: #2c7a4b; --c3: #8a4fa3; --c4: #a68a1a; --c5: #1b8a8f;
  --c6: #b0386a; --c7: #6a6f75; }
@media (prefers-color-scheme: dark) { :root { --c0: #8fb3dc; --c1: #f0995a; --c2: #67c08b; --c3: #c79ad8;
  --c4: #d9c15a; --c5: #62c4c9; --c6: #e68ab0; --c7: #9aa0a6; } }
th, td { text-align: right; padding: .3rem .6rem; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 48rem; } p.soft { margin: .2rem 0; }
.line { fill: none; stroke: currentcolor; stroke-width: 2; }
circle, rect { fill: currentcolor; }
.legend { margin: .5rem 0 0; } .key { margin-right: 1rem; }
"""
_COLOR_CLASSES: Final = "".join(f".c{i} {{ color: var(--c{i}); }} " for i in range(8))
_PERCENTILES: Final = ("p50", "p90", "p95", "p99", "p99.9")


def page(document: Mapping[str, Any], results: Sequence[Result], changes: Sequence[Change]) -> str:
    """Return the page."""
    title = f"{document['model']} at {document['url']}"
    about = f"{document['server']}, batch {document['batch']}, {document['arrivals']}"
    return chart_page(
        title,
        f'<p class="soft">{escape(about)}; {escape(document["when"])}</p>{_objective(document)}'
        f"{_results(results)}{_changes(changes)}"
        f'<div class="pair">{"".join(_charts(results))}</div>{_shares(results)}',
    )


def chart_page(title: str, body: str) -> str:
    """Return a page whose charts and tables look as those of this one."""
    return html_page(title, _STYLE + _COLOR_CLASSES, body)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _objective(document: Mapping[str, Any]) -> str:
    slo = document.get("slo")
    if not slo:
        return ""
    text = f"{slo['rate']:.4g}/s keeps {slo['rules']}" if slo["rate"] else f"no rate keeps {slo['rules']}"
    return f'<p class="{"good" if slo["rate"] else "bad"}">{escape(text)}</p>'


def _results(results: Sequence[Result]) -> str:
    head = ["load", "answers/s", *(f"{name} ms" for name in _PERCENTILES), "max", "service p99"]
    rows = [
        [
            str(result.level),
            f"{result.rate:.1f}",
            *(f"{result.latency[name]:.2f}" for name in _PERCENTILES),
            f"{result.latency.max:.1f}",
            f"{result.service['p99']:.2f}",
            f"{result.lateness['p99']:.2f}",
            str(result.failed),
            "void" if result.void else "" if result.stable else "unstable",
        ]
        for result in results
    ]
    told = "".join(f'<p class="soft">{escape(note)}</p>' for note in notes(results))
    return section("Loads", table([*head, "own lateness p99", "failed", ""], rows) + told)


def _changes(changes: Sequence[Change]) -> str:
    rows = [
        [c.load, c.metric, f"{c.old:.4g}", f"{c.new:.4g}", f"{c.percent:+.1f}%", c.verdict] for c in changes
    ]
    head = ["load", "figure", "then", "now", "change", "verdict"]
    return section("Beside the earlier run", table(head, rows) if rows else "")


def _charts(results: Sequence[Result]) -> list[str]:
    answered = [result for result in results if result.curve]
    if not answered:
        return []
    ordered = sorted(answered, key=lambda result: result.rate)
    found = []
    if len(ordered) > 1:
        over = {name: [(r.rate, r.latency[name]) for r in ordered] for name in ("p50", "p99", "p99.9")}
        found.append(section("Latency over load", _ms_lines(over, "answers/s")))
    shown = answered[-8:]
    curves = {str(result.level): [point for point in result.curve if point[0] < 100] for result in shown}
    y = charts.logarithmic([ms for points in curves.values() for _, ms in points], "ms")
    found.append(section("Distribution of latencies", charts.lines(curves, charts.nines("percentile"), y)))
    times = {str(result.level): [(at, p99) for at, _, _, p99 in result.timeline] for result in shown}
    found.append(section("p99 over time", _ms_lines(times, "s", logarithmic=True)))
    return found


def _ms_lines(series: charts.Series, label: str, logarithmic: bool = False) -> str:
    values = [ms for points in series.values() for _, ms in points]
    y = charts.logarithmic(values, "ms") if logarithmic else charts.linear(values, "ms")
    return charts.lines(series, charts.linear([x for p in series.values() for x, _ in p], label), y)


def _shares(results: Sequence[Result]) -> str:
    rows: dict[str, dict[str, float]] = {}
    for result in results:
        share = result.server
        if share is None or not share.requests:
            continue
        inside = {
            "queue": share.queue_us,
            "input": share.compute_input_us,
            "infer": share.compute_infer_us,
            "output": share.compute_output_us,
        }
        other = max(share.total_us - sum(inside.values()), 0.0)
        outside = max(result.service.mean * 1e3 - share.total_us, 0.0)
        rows[str(result.level)] = {"front, network": outside, **inside, "other in the model": other}
    return section("Where the time goes, microseconds of a request", charts.bars(rows, "us") if rows else "")
