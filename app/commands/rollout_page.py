"""Both versions of a rollout compared, as one HTML page that needs no other file or server. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from app.commands.rollout_charts import errors_chart, latency_chart, quantiles_chart, weight_chart
from app.commands.rollout_text import (
    alarm_level,
    event_text,
    evidence,
    figure_rows,
    fullness,
    mirrored_rows,
    state,
    title,
)
from app.core.rollout.report import QUANTILES, RolloutFigures, figures
from app.core.rollout.status import RolloutState, RolloutStatus

_STYLE: Final = """
:root { color-scheme: light dark; --page: #f7f7f5; --card: #fff; --text: #1d1f21; --soft: #6a6f75;
  --line: #e2e3e0; --stable: #4f6d8f; --candidate: #c2571a; --good: #2c7a4b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #16181a; --card: #1f2225; --text: #e6e7e8;
  --soft: #9aa0a6; --line: #34383c; --stable: #8fb3dc; --candidate: #f0995a; --good: #67c08b;
  --bad: #f28b82; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 0 0 .75rem; }
p { margin: .25rem 0; }
.soft { color: var(--soft); }
.state { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; border: 1px solid currentcolor;
  font-size: .85rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.1rem 1.25rem; margin-top: 1rem; overflow-x: auto; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(21rem, 1fr)); gap: 1rem;
  margin-top: 1rem; }
.pair section { min-width: 0; margin-top: 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-top: 1px solid var(--line);
  vertical-align: top; }
tr:first-child > * { border-top: 0; }
th { font-weight: 600; } thead th { color: var(--soft); font-weight: 500; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--line); }
.stable { color: var(--stable); } .candidate { color: var(--candidate); }
.key::before { content: ""; display: inline-block; width: .7rem; height: .7rem; border-radius: .15rem;
  background: currentcolor; margin-right: .4rem; }
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
    name = f"{title(status).replace('->', '→')}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(name)}</title>
<style>{_STYLE}</style>
</head>
<body><main>
<h1>{escape(name)}</h1>
{_summary(status, now)}
{_comparison(status)}
{_judgement(status)}
{_history(status, now)}
</main></body>
</html>
"""


def _summary(status: RolloutStatus, now: float) -> str:
    tone = "bad" if status.verdict.alarms or status.state in _BAD else "good"
    return (
        f'<p><span class="state {tone}">{escape(state(status))}</span> '
        f'<span class="soft">{status.percent:g} % of the requests to version {status.candidate}; '
        f"from {_time(status.started)} to {_time(now)}</span></p>\n"
        f"<p>{escape(status.reason)}</p>"
    )


_BAD: Final = (RolloutState.FAILED, RolloutState.ABORTED, RolloutState.ROLLING_BACK)


def _comparison(status: RolloutStatus) -> str:
    found = figures(status.total)
    quantiles = tuple(f"{quantile:g}" for quantile in QUANTILES)
    rows = _rows(figure_rows(status, found, quantiles))
    head = (
        f'<tr><th></th><th class="stable key">version {status.stable} (stable)</th>'
        f'<th class="candidate key">version {status.candidate} (candidate)</th></tr>'
    )
    note = '<p class="soft">In parentheses, and as bars: the interval in which the value lies with 95 %.</p>'
    return (
        f"<section><h2>Both versions, over the whole rollout</h2><table><thead>{head}</thead>"
        f"<tbody>{rows}</tbody></table>{note}</section>\n{_charts(status, found)}"
    )


def _charts(status: RolloutStatus, found: RolloutFigures) -> str:
    charts = (
        ("Latency of answers", latency_chart(status.total)),
        ("Latency quantiles", quantiles_chart(found)),
        ("Error rate", errors_chart(found, status.spec.judge.errors)),
    )
    shown = (f"<section><h2>{title}</h2>{chart}</section>" for title, chart in charts if chart)
    return f'<div class="pair">{"".join(shown)}{_mirrored(status)}</div>\n'


def _mirrored(status: RolloutStatus) -> str:
    rows = mirrored_rows(status)
    if not rows:
        return ""
    return f"<section><h2>Mirrored requests</h2><table><tbody>{_rows(rows)}</tbody></table></section>"


def _judgement(status: RolloutStatus) -> str:
    verdict, alarm = status.verdict, alarm_level(status)
    notes = [f'<p class="bad">{escape(text)}</p>' for text in verdict.alarms]
    if verdict.detectable < 1:
        notes.append(
            f"<p>An error rate from {100 * verdict.detectable:.3g} % on would have been noticed.</p>"
        )
    if verdict.waiting and not status.state.over:
        notes.append(f'<p class="soft">Waiting for {escape(verdict.waiting)}.</p>')
    meters = "".join(_meter(rule, value, alarm) for rule, value in verdict.evidence.items())
    table = f"<table><tbody>{meters}</tbody></table>" if meters else ""
    if not table and not notes:
        return ""
    about = f'<p class="soft">Evidence against the candidate in this step; an alarm from {alarm:,.0f} on.</p>'
    return f"<section><h2>Judgement</h2>{table}{about}{''.join(notes)}</section>"


def _meter(rule: str, value: float, alarm: float) -> str:
    full = " full" if value > alarm else ""
    width = 100 * fullness(value, alarm)
    return (
        f"<tr><th>{escape(rule.replace('_', ' '))}</th>"
        f'<td><div class="meter{full}"><div style="width:{width:.1f}%"></div></div></td>'
        f"<td>{evidence(value)}</td></tr>"
    )


def _history(status: RolloutStatus, now: float) -> str:
    rows = _rows([(_time(event.at), event_text(event)) for event in status.history])
    chart = weight_chart(status.history, now if not status.state.over else status.since)
    return f"<section><h2>Course</h2>{chart}<table><tbody>{rows}</tbody></table></section>"


def _rows(rows: Sequence[Sequence[str]]) -> str:
    return "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
