"""Results on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nereid_client.tools.digits import four_digits
from nereid_client.tools.perf.compare import Change
from nereid_client.tools.perf.result import Result
from nereid_client.tools.perf.server_share import Share

CLOSED: Final = (
    "A closed loop hides stalls: while the server stalls nothing is sent. --rate has what clients would see."
)
_COLORS: Final = {"worse": "red", "better": "green", "void": "yellow"}


def console(stderr: bool = False) -> Console:
    """Return where text goes; lines are not broken where there is no terminal."""
    made = Console(stderr=stderr, highlight=False, emoji=False)
    if made.is_terminal:
        return made
    return Console(stderr=stderr, highlight=False, emoji=False, width=200, no_color=True)


def verdict(slo: Mapping[str, Any]) -> str:
    """Return what a search has found, of its part of the document."""
    if slo["rate"]:
        return f"{four_digits(slo['rate'])}/s keeps {slo['rules']}"
    return f"no rate was found that keeps {slo['rules']}: {slo['why']}"


def winner(slo: Mapping[str, Any] | None, results: Sequence[Result]) -> Result | None:
    """Return the measurement that decided for a rate: the last one of a search that found one."""
    return results[-1] if slo and slo["rate"] else None


def results_table(results: Sequence[Result], best: Result | None = None) -> Table:
    """Return a row for each level; the best one is marked."""
    table = empty_table(
        *("load", ">answers/s", ">p50 ms", ">p90", ">p99", ">p99.9", ">max", ">service p99"),
        *(">own lateness p99", ">failed", ""),
    )
    for result in results:
        spread = result.latency
        rate = f"{result.rate:.1f} ±{_half(result):.1f}"
        cells = [str(result.level), rate, *(f"{spread[name]:.2f}" for name in ("p50", "p90", "p99", "p99.9"))]
        cells += [f"{spread.max:.1f}", f"{result.service['p99']:.2f}", f"{result.lateness['p99']:.2f}"]
        table.add_row(*cells, str(result.failed) if result.failed else "", _mark(result, best))
    return table


def _half(result: Result) -> float:
    interval = result.intervals["rate"]
    return (interval.high - interval.low) / 2


def _mark(result: Result, best: Result | None) -> str:
    kept = "[green]kept[/]" if result is best else ""
    if result.void:
        return f"[yellow]void[/] {kept}"
    return kept if result.stable else f"[yellow]unstable[/] {kept}"


def share_table(results: Sequence[Result]) -> Table | None:
    """Return where the time of a request goes, on average, as the server has counted it."""
    counted = [result for result in results if result.server is not None and result.server.requests]
    if not counted:
        return None
    table = empty_table(
        *("where the time goes, us", ">front, network", ">queue", ">input", ">infer", ">output"),
        *(">other", ">in the model", ">mean batch", ">cache hits"),
    )
    for result in counted:
        assert result.server is not None
        outside = max(result.service.mean * 1e3 - result.server.total_us, 0.0)
        table.add_row(str(result.level), f"{outside:.0f}", *_share_cells(result.server))
        for name, step in result.server.steps.items():
            table.add_row(f"  {escape(name)}", "", *_share_cells(step))
    return table


def _share_cells(share: Share) -> list[str]:
    parts = (share.queue_us, share.compute_input_us, share.compute_infer_us, share.compute_output_us)
    other = max(share.total_us - sum(parts), 0.0)
    hits = str(share.cache_hits) if share.cache_hits else ""
    cells = [f"{part:.0f}" for part in (*parts, other, share.total_us)]
    return [*cells, f"{share.mean_batch:.2f}", hits]


def streams_table(results: Sequence[Result]) -> Table | None:
    """Return the figures of streams."""
    streams = [(result, result.streams) for result in results if result.streams is not None]
    if not streams:
        return None
    table = empty_table(
        *("streams", ">responses/s", ">first p50 ms", ">first p99", ">gap p50 ms", ">gap p99", ">gap max")
    )
    for result, one in streams:
        cells = [f"{one.per_second:.1f}", f"{one.first['p50']:.2f}", f"{one.first['p99']:.2f}"]
        cells += [f"{one.gap['p50']:.2f}", f"{one.gap['p99']:.2f}", f"{one.gap.max:.1f}"]
        table.add_row(str(result.level), *cells)
    return table


def changes_table(changes: Sequence[Change]) -> Table:
    """Return a comparison."""
    table = empty_table("load", "figure", ">then", ">now", ">change", "verdict")
    for change in changes:
        color = _COLORS.get(change.verdict)
        verdict = f"[{color}]{change.verdict}[/]" if color else change.verdict
        cells = four_digits(change.old), four_digits(change.new), f"{change.percent:+.1f}%"
        table.add_row(change.load, change.metric, *cells, verdict)
    return table


def empty_table(*columns: str) -> Table:
    """Return an empty table; a column that begins with ">" is aligned to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify: Any = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=justify, no_wrap=True)
    return table


def notes(results: Sequence[Result]) -> Iterator[str]:
    """Yield what is to be known about results besides their figures."""
    for result in results:
        for text in (*((result.void,) if result.void else ()), *(() if result.stable else result.reasons)):
            yield f"{result.level}: {text}"
        for text, number in sorted(result.errors.items(), key=lambda item: -item[1])[:5]:
            yield f"{result.level}: {number} times: {text}"
    if any(result.level.kind == "concurrency" for result in results):
        yield CLOSED


def curve(results: Sequence[Result], width: int) -> str:
    """Return p50 and p99 over the rate as text; "" for too few points, or without plotext."""
    if len(results) < 3:
        return ""
    try:
        import plotext
    except ImportError:
        return ""
    ordered = sorted(results, key=lambda result: result.rate)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(min(width, 100), 18)
    for name in ("p50", "p99"):
        rates = [result.rate for result in ordered]
        plotext.plot(rates, [result.latency[name] for result in ordered], label=name, marker="braille")
    plotext.title("latency in ms over answers a second")
    return str(plotext.build())
