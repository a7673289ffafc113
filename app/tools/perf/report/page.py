"""A run as one HTML page that needs no other file or server. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from app.tools.perf.compare import Change
from app.tools.perf.report import charts
from app.tools.perf.report.text import notes
from app.tools.perf.result import Result

_STYLE: Final = """
:root { color-scheme: light dark; --page: #f7f7f5; --card: #fff; --text: #1d1f21; --soft: #656a70;
  --line: #e2e3e0; --good: #2c7a4b; --bad: #b3261e; --c0: #3767a6; --c1: #c2571a; --c2: #2c7a4b;
  --c3: #8a4fa3; --c4: #a68a1a; --c5: #1b8a8f; --c6: #b0386a; --c7: #6a6f75; }
@media (prefers-color-scheme: dark) { :root { --page: #16181a; --card: #1f2225; --text: #e6e7e8;
  --soft: #9aa0a6; --line: #34383c; --good: #67c08b; --bad: #f28b82; --c0: #8fb3dc; --c1: #f0995a;
  --c2: #67c08b; --c3: #c79ad8; --c4: #d9c15a; --c5: #62c4c9; --c6: #e68ab0; --c7: #9aa0a6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1rem; margin: 0 0 .75rem; }
.soft { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.1rem 1.25rem; margin-top: 1rem; overflow-x: auto; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; }
.pair section { min-width: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 500; }
svg { width: 100%; max-width: 48rem; height: auto; display: block; } p.soft { margin: .2rem 0; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--line); } .line { fill: none; stroke: currentcolor; stroke-width: 2; }
circle, rect { fill: currentcolor; }
.legend { margin: .5rem 0 0; } .key { margin-right: 1rem; }
.key::before { content: ""; display: inline-block; width: .7rem; height: .7rem; border-radius: .15rem;
  background: currentcolor; margin-right: .4rem; }
"""
_COLOR_CLASSES: Final = "".join(f".c{i} {{ color: var(--c{i}); }} " for i in range(8))
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_PERCENTILES: Final = ("p50", "p90", "p95", "p99", "p99.9")


def page(document: Mapping[str, Any], results: Sequence[Result], changes: Sequence[Change]) -> str:
    """Return the page."""
    title = f"{document['model']} at {document['url']}"
    about = f"{document['server']}, batch {document['batch']}, {document['arrivals']}"
    return html_page(
        title,
        f'<p class="soft">{escape(about)}; {escape(document["when"])}</p>{_objective(document)}'
        f"{_results(results)}{_changes(changes)}"
        f'<div class="pair">{"".join(_charts(results))}</div>{_shares(results)}',
    )


def html_page(title: str, body: str) -> str:
    """Return a page with the style of this one."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{_STYLE}{_COLOR_CLASSES}</style>
</head>
<body><main>
<h1>{escape(title)}</h1>
{body}
</main></body>
</html>
"""


def section(title: str, body: str) -> str:
    """Return a card; "" without a body."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


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
