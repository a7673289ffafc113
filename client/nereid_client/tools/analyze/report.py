"""What a search has found: as config.pbtxt, on a terminal, as a page. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median
from typing import Any, Final

from google.protobuf import json_format, text_format
from rich.box import SIMPLE_HEAD
from rich.table import Table
from tritonclient.grpc import model_config_pb2

from nereid_client.tools import charts
from nereid_client.tools.analyze.choice import pareto
from nereid_client.tools.analyze.state import State
from nereid_client.tools.analyze.trials import C, Measured
from nereid_client.tools.digits import four_digits
from nereid_client.tools.html_page import section
from nereid_client.tools.perf.report.page import chart_page, table

HEAD: Final = (
    *("configuration", "predicted/s", "closed loop/s", "keeps it at/s"),
    *("p50 ms", "p99 ms", "mean batch", ""),
)
_FAR_OFF: Final = 2.0
"""A prediction that is off by this factor says nothing."""


def pbtxt(config: Mapping[str, Any], comments: Sequence[str]) -> str:
    """Return a configuration as text, with comments before it; fields at their defaults are left out."""
    message = json_format.ParseDict(
        json.loads(json.dumps(config)), model_config_pb2.ModelConfig(), ignore_unknown_fields=True
    )
    return "".join(f"# {line}\n" for line in comments) + str(text_format.MessageToString(message))


def rows(state: State[C], marks: Mapping[C, str]) -> list[list[str]]:
    """Return a row of texts for each candidate that was compared, the best first.

    A prediction that is far off what was measured is not shown.
    """
    known = dict.fromkeys((*state.rates, *state.measured))
    ordered = sorted(known, key=lambda c: (_kept(state, c), median(state.rates.get(c, [0.0]))), reverse=True)
    return [_row(state, candidate, marks.get(candidate, "")) for candidate in ordered]


def _kept(state: State[C], candidate: C) -> float:
    found = state.measured.get(candidate)
    return found.rate if found is not None and not found.below else 0.0


def _row(state: State[C], candidate: C, mark: str) -> list[str]:
    found, turns = state.measured.get(candidate), state.rates.get(candidate)
    in_turn = median(turns) if turns else 0.0
    doubt = "unsure" if candidate in state.doubts or (found is not None and found.why) else ""
    figures = (found.p50_ms, found.p99_ms, found.mean_batch) if found and found.p50_ms else ()
    return [
        str(candidate),
        _prediction(state.predicted.get(candidate, 0.0), _kept(state, candidate) or in_turn),
        four_digits(in_turn) if turns else "",
        _rate(found),
        *([f"{value:.2f}" for value in figures] or [""] * 3),
        ", ".join(filter(None, (mark, doubt))),
    ]


def _rate(found: Measured | None) -> str:
    if found is None:
        return ""
    return (
        f"< {four_digits(found.below)}" if found.below else four_digits(found.rate) if found.rate else "none"
    )


def _prediction(predicted: float, measured: float) -> str:
    if not predicted or (measured and not 1 / _FAR_OFF <= predicted / measured <= _FAR_OFF):
        return "–"
    return four_digits(predicted)


def printed(lines: Sequence[Sequence[str]]) -> Table:
    """Return the rows as a table for a terminal."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(HEAD):
        made.add_column(name, justify="right" if 0 < place < len(HEAD) - 1 else "left", no_wrap=True)
    for line in lines:
        made.add_row(*line)
    return made


def page(
    title: str,
    sentences: Sequence[str],
    lines: Sequence[Sequence[str]],
    measured: Mapping[C, Measured],
    config: str,
) -> str:
    """Return the page, with the Pareto front of rate and p99."""
    points = {str(candidate): found.points for candidate, found in measured.items() if found.points}
    front = pareto(points)
    series = {"Pareto front": [(rate, latency) for rate, latency, _ in front]}
    series |= {name: sorted(own) for name, own in list(points.items())[:7]}
    flat = [point for own in series.values() for point in own]
    x = charts.linear([rate for rate, _ in flat], "requests/s")
    y = charts.linear([latency for _, latency in flat], "ms")
    best = table(
        ("requests/s", "p99 ms", "configuration"),
        [(four_digits(r), f"{ms:.2f}", name) for r, ms, name in front],
    )
    return chart_page(
        title,
        "".join(f"<p>{escape(text)}</p>" for text in sentences)
        + section("Configurations", table(HEAD, lines))
        + section(
            "p99 over rate, of loads that keep the objective", charts.lines(series, x, y) if flat else ""
        )
        + section("Pareto front", best if front else "")
        + section("config.pbtxt", f"<pre>{escape(config)}</pre>" if config else ""),
    )
