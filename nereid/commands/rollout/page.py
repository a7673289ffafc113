"""Both versions of a rollout compared, as one HTML page that needs no other file or server. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Final

from app.core.rollout.outcomes import Outcomes
from app.core.rollout.report import QUANTILES, Estimate, RolloutFigures, figures
from app.core.rollout.spec import ErrorRule
from app.core.rollout.statistics import microseconds
from app.core.rollout.status import RolloutEvent, RolloutState, RolloutStatus
from nereid.commands.rollout.saved import saving_rows
from nereid.commands.rollout.taped import tape_rows, worst_rows
from nereid.commands.rollout.text import (
    alarm_level,
    coming,
    event_text,
    evidence,
    failures,
    figure_rows,
    fullness,
    mirrored_rows,
    rejections,
    state,
    title,
)
from nereid_client.tools import charts
from nereid_client.tools.html_page import html_page, section

_STYLE: Final = """
main { max-width: 60rem; padding-top: 2.5rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin-bottom: .25rem; }
p { margin: .25rem 0; }
.state { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; border: 1px solid currentcolor;
  font-size: .85rem; }
.pair { grid-template-columns: repeat(auto-fit, minmax(21rem, 1fr)); margin-top: 1rem; }
.pair section { margin-top: 0; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-top: 1px solid var(--line);
  vertical-align: top; }
tr:first-child > * { border-top: 0; }
tbody th { font-weight: 600; }
.meter { height: .5rem; margin-top: .5rem; border-radius: .25rem; background: var(--line); overflow: hidden;
  min-width: 6rem; }
.meter div { height: 100%; background: var(--good); } .meter.full div { background: var(--bad); }
"""


def page(status: RolloutStatus, now: float) -> str:
    """Return the page.

    Args:
        status: of the rollout.
        now: Unix seconds.
    """
    parts = (
        _summary(status, now),
        _comparison(status),
        _failures(status),
        _judgement(status),
        _tape(status),
        _saving(status),
        _history(status, now),
        _rejected(status),
    )
    return html_page(title(status).replace("->", "→"), charts.STYLE + _STYLE, "\n".join(parts))


def _summary(status: RolloutStatus, now: float) -> str:
    tone = "bad" if status.verdict.alarms or status.state in _BAD else "good"
    return (
        f'<p><span class="state {tone}">{escape(state(status))}</span> '
        f'<span class="soft">{status.percent:g} % of the requests to version {status.candidate}; '
        f"from {_time(status.started)} to {_time(now)}</span></p>\n"
        f"<p>{escape(status.reason)}</p>\n"
        f'<p class="soft">{escape(_sentence(coming(status, now)))}</p>'
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


_BAD: Final = (RolloutState.FAILED, RolloutState.ABORTED, RolloutState.ROLLING_BACK)


def _comparison(status: RolloutStatus) -> str:
    found = figures(status.total)
    quantiles = tuple(f"{quantile:g}" for quantile in QUANTILES)
    rows = _rows(figure_rows(found, quantiles))
    head = (
        f'<tr><th></th><th class="c0 key">version {status.stable} (stable)</th>'
        f'<th class="c1 key">version {status.candidate} (candidate)</th></tr>'
    )
    note = '<p class="soft">In parentheses, and as bars: the interval in which the value lies with 95 %.</p>'
    table = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
    return section("Both versions, over the whole rollout", table + note) + f"\n{_charts(status, found)}"


def _charts(status: RolloutStatus, found: RolloutFigures) -> str:
    shown = (
        section("Latency of answers", _latency_chart(status.total)),
        section("Latency quantiles", _quantiles_chart(found)),
        section("Error rate", _errors_chart(found, status.spec.judge.errors)),
    )
    return f'<div class="pair">{"".join(shown)}{_mirrored(status)}</div>\n'


def _latency_chart(outcomes: Outcomes) -> str:
    """Return the distribution of both versions' durations; "" without any."""
    versions = {"stable": outcomes.stable.latencies, "candidate": outcomes.candidate.latencies}
    series = {name: _steps(latencies) for name, latencies in versions.items() if latencies}
    if not series:
        return ""
    x = charts.logarithmic([at for points in series.values() for at, _ in points], "ms")
    y = charts.linear([share for points in series.values() for _, share in points], "% of the answers")
    return charts.lines(series, x, y, dots=False)


def _steps(latencies: Mapping[int, int]) -> list[charts.Point]:
    """Return the shares of the buckets as a line of steps, over milliseconds."""
    total, points = sum(latencies.values()), []
    for bucket in range(min(latencies), max(latencies) + 1):
        share = 100 * latencies.get(bucket, 0) / total
        points += [(microseconds(at) / 1000, share) for at in (bucket - 1, bucket)]
    return [(points[0][0], 0.0), *points, (points[-1][0], 0.0)]


def _quantiles_chart(found: RolloutFigures) -> str:
    """Return the quantiles of both versions with their intervals; "" without any."""
    versions = {"stable": found.stable.latency_ms, "candidate": found.candidate.latency_ms}
    names = dict.fromkeys(quantile for each in versions.values() for quantile in each)
    rows = {
        f"p{float(quantile) * 100:g}": {
            version: _interval(each[quantile]) for version, each in versions.items() if quantile in each
        }
        for quantile in names
    }
    values = [value for row in rows.values() for interval in row.values() for value in interval]
    return charts.intervals(rows, charts.logarithmic(values, "ms")) if rows else ""


def _errors_chart(found: RolloutFigures, rule: ErrorRule | None) -> str:
    """Return the error rates of both versions with their intervals, and the budget; "" without requests."""
    rates = {"stable": found.stable.error_rate, "candidate": found.candidate.error_rate}
    row = {name: _interval(rate, 100) for name, rate in rates.items() if rate is not None}
    limits = {"budget": 100 * rule.budget} if rule else {}
    x = charts.linear([*limits.values(), *(high for *_, high in row.values())], "% of the requests")
    return charts.intervals({"": row}, x, limits) if row else ""


def _interval(estimate: Estimate, times: float = 1) -> tuple[float, float, float]:
    return estimate.low * times, estimate.value * times, estimate.high * times


def _weight_chart(history: Sequence[RolloutEvent], end: float) -> str:
    """Return both versions' weights over time; "" for a history without an extent."""
    if not history or end <= history[0].at:
        return ""
    begin, points = history[0].at, [(0.0, history[0].percent)]
    for before, event in pairwise(history):
        points += [(min(event.at, end) - begin, each.percent) for each in (before, event)]
    points.append((end - begin, history[-1].percent))
    x, y = charts.linear([end - begin], "s since the start"), charts.linear([100], "% of the requests")
    weights = {"stable": [(at, 100 - percent) for at, percent in points], "candidate": points}
    return charts.lines(weights, x, y, dots=False)


def _mirrored(status: RolloutStatus) -> str:
    rows = mirrored_rows(status)
    return section("Mirrored requests", f"<table><tbody>{_rows(rows)}</tbody></table>" if rows else "")


def _failures(status: RolloutStatus) -> str:
    rows = _rows([(f"{number:,}", text) for text, number in failures(status)])
    about = f"Most frequent failures of version {status.candidate}"
    return section(about, f"<table><tbody>{rows}</tbody></table>" if rows else "")


def _judgement(status: RolloutStatus) -> str:
    verdict, alarm = status.verdict, alarm_level(status)
    notes = [f'<p class="bad">{escape(text)}</p>' for text in verdict.alarms]
    if verdict.detectable < 1:
        notes.append(
            f"<p>An error rate from {100 * verdict.detectable:.3g} % on would have been noticed.</p>"
        )
    if verdict.waiting and not status.state.over:
        notes.append(f'<p class="soft">Waiting for {escape(verdict.waiting)}.</p>')
    if verdict.holds and not status.state.over:
        notes.append(f'<p class="soft">Not to take over yet: {escape(verdict.holds)}.</p>')
    meters = "".join(_meter(rule, value, alarm) for rule, value in verdict.evidence.items())
    table = f"<table><tbody>{meters}</tbody></table>" if meters else ""
    if not table and not notes:
        return ""
    about = f'<p class="soft">Evidence against the candidate in this step; an alarm from {alarm:,.0f} on.</p>'
    return section("Judgement", table + about + "".join(notes))


def _meter(rule: str, value: float, alarm: float) -> str:
    full = " full" if value > alarm else ""
    width = 100 * fullness(value, alarm)
    return (
        f"<tr><th>{escape(rule.replace('_', ' '))}</th>"
        f'<td><div class="meter{full}"><div style="width:{width:.1f}%"></div></div></td>'
        f"<td>{evidence(value)}</td></tr>"
    )


def _tape(status: RolloutStatus) -> str:
    rows, worst = tape_rows(status), worst_rows(status)
    if not rows:
        return ""
    table = f"<table><tbody>{_rows(rows)}</tbody></table>"
    about = f'<p class="soft">The worst of them:</p><table><tbody>{_rows(worst)}</tbody></table>'
    return section("Recorded requests", table + (about if worst else ""))


def _saving(status: RolloutStatus) -> str:
    rows = _rows(saving_rows(status.saving))
    return section("What it saves", f"<table><tbody>{rows}</tbody></table>" if rows else "")


def _history(status: RolloutStatus, now: float) -> str:
    rows = _rows([(_time(event.at), event_text(event)) for event in status.history])
    chart = _weight_chart(status.history, now if not status.state.over else status.since)
    return section("Course", f"{chart}<table><tbody>{rows}</tbody></table>")


def _rejected(status: RolloutStatus) -> str:
    texts = (f"<p>{escape(text)}</p>" for text in filter(None, rejections(status.model, status.rejected)))
    return section("Versions that get no requests", "".join(texts)) if status.rejected else ""


def _rows(rows: Sequence[Sequence[str]]) -> str:
    return "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
