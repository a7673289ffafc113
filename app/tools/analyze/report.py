"""What a search has found: as config.pbtxt, on a terminal, as a page. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from google.protobuf import json_format, text_format
from rich.box import SIMPLE_HEAD
from rich.table import Table
from tritonclient.grpc import model_config_pb2

from app.tools.analyze.choice import pareto
from app.tools.analyze.space import Candidate
from app.tools.analyze.trials import Measured
from app.tools.html_page import section
from app.tools.perf.report import charts
from app.tools.perf.report.page import chart_page, table

HEAD = ("configuration", "predicted/s", "measured/s", "p50 ms", "p99 ms", "mean batch", "")


def pbtxt(config: Mapping[str, Any], comments: Sequence[str]) -> str:
    """Return a configuration as text, with comments before it; fields at their defaults are left out."""
    message = json_format.ParseDict(
        json.loads(json.dumps(config)), model_config_pb2.ModelConfig(), ignore_unknown_fields=True
    )
    return "".join(f"# {line}\n" for line in comments) + str(text_format.MessageToString(message))


def rows(
    predicted: Mapping[Candidate, float],
    measured: Mapping[Candidate, Measured],
    marks: Mapping[Candidate, str],
) -> list[list[str]]:
    """Return a row of texts for each measured candidate, the best first."""
    ordered = sorted(measured.items(), key=lambda item: -item[1].rate)
    return [
        [
            str(candidate),
            f"{predicted.get(candidate, 0):.0f}",
            f"< {found.below:.4g}" if found.below else f"{found.rate:.4g}",
            *(f"{value:.2f}" for value in (found.p50_ms, found.p99_ms, found.mean_batch)),
            marks.get(candidate, ""),
        ]
        for candidate, found in ordered
    ]


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
    measured: Mapping[Candidate, Measured],
    config: str,
) -> str:
    """Return the page, with the Pareto front of rate and p99."""
    points = {str(candidate): found.points for candidate, found in measured.items() if found.points}
    front = pareto(points)
    series = {"Pareto front": [(rate, latency) for rate, latency, _ in front]}
    series |= {name: sorted(own) for name, own in list(points.items())[:7]}
    flat = [point for own in series.values() for point in own]
    x = charts.linear([rate for rate, _ in flat], "answers/s")
    y = charts.linear([latency for _, latency in flat], "ms")
    best = table(
        ("answers/s", "p99 ms", "configuration"), [(f"{r:.4g}", f"{ms:.2f}", name) for r, ms, name in front]
    )
    return chart_page(
        title,
        "".join(f"<p>{escape(text)}</p>" for text in sentences)
        + section("Configurations", table(HEAD, lines))
        + section("p99 over rate, of loads that keep the objective", charts.lines(series, x, y))
        + section("Pareto front", best)
        + section("config.pbtxt", f"<pre>{escape(config)}</pre>"),
    )
