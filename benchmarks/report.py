"""Measurements as monospace tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from benchmarks.measure import Measurement
from benchmarks.processes import total

Rows = list[list[str]]


def table(header: Sequence[str], rows: Rows) -> str:
    """Format columns as wide as their widest cell; the first is aligned left, the rest right."""
    widths = [max(len(line[column]) for line in [list(header), *rows]) for column in range(len(header))]
    lines = [list(header), ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if n < 2 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def cell_rows(results: Sequence[Measurement]) -> Rows:
    """Return one row for each server; the first is the one the others are compared with."""
    servers = unique(result.server for result in results)
    return [server_row(results, server, servers[0]) for server in servers]


def server_row(results: Sequence[Measurement], server: str, base: str) -> list[str]:
    mine = [result for result in results if result.server == server]
    ran = [result for result in mine if result.load.requests] or mine
    rate = middle(ran, lambda m: m.load.infer_per_s)
    cores = middle(ran, lambda m: total(m.usage).cores)
    return [
        mine[0].cell if server == base else "",
        server,
        f"{rate:,.0f}",
        f"{middle(ran, lambda m: m.load.p50_ms):.2f}",
        f"{middle(ran, lambda m: m.load.p99_ms):.2f}",
        f"{middle(ran, lambda m: m.mean_batch):.1f}",
        f"{cores:.2f}",
        f"{cores / rate * 1e6:,.0f}" if rate else "",
        f"{max(total(m.usage).peak_mib for m in ran):,.0f}",
        "" if server == base else ratio_text(results, base, server, lambda m: m.load.p99_ms),
        ("" if server == base else ratio_text(results, base, server)) + ("!" if notes(mine) else ""),
    ]


def notes(results: Sequence[Measurement]) -> list[str]:
    """Return the explanations of each `!` in the last column."""
    return [f"! {m.cell} {m.server}, round {m.round}: {m.complaint}" for m in results if m.complaint]


def infer_per_s(measurement: Measurement) -> float:
    return measurement.load.infer_per_s


def ratio_text(
    results: Sequence[Measurement], base: str, peer: str, value: Callable[[Measurement], float] = infer_per_s
) -> str:
    ratios = paired_ratios(results, base, peer, value)
    if not ratios:
        return "-"
    spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}x{spread}"


def paired_ratios(
    results: Sequence[Measurement], base: str, peer: str, value: Callable[[Measurement], float] = infer_per_s
) -> list[float]:
    """Return a value of `base` over that of `peer`, round by round; without another, the throughput."""
    values = {(m.server, m.round): value(m) for m in results if m.load.infer_per_s and not m.complaint}
    rounds = sorted({round_ for _, round_ in values})
    return [
        values[base, round_] / values[peer, round_]
        for round_ in rounds
        if (base, round_) in values and (peer, round_) in values
    ]


def cells_header(base: str) -> list[str]:
    figures = ["infer/s", "p50 ms", "p99 ms", "batch", "cores", "CPU us", "peak MiB"]
    return ["cell", "server", *figures, f"p99, {base}/it", f"rate, {base}/it"]


def process_rows(results: Sequence[Measurement]) -> Rows:
    """Return each process of each server with its busiest cell and its highest peak."""
    rows = []
    for server in unique(result.server for result in results):
        mine = [result for result in results if result.server == server]
        for role in unique(role for result in mine for role in result.usage):
            used = [(result.usage[role], result.cell) for result in mine if role in result.usage]
            busiest, cell = max(used, key=lambda pair: pair[0].cores)
            mean = sum(usage.cores for usage, _ in used) / len(used)
            peak = max(usage.peak_mib for usage, _ in used)
            rows.append([server, role, f"{mean:.2f}", f"{busiest.cores:.2f}", cell, f"{peak:,.0f}"])
    return rows


PROCESS_HEADER = ["server", "process", "mean cores", "most cores", "in", "peak MiB"]


def middle(results: Sequence[Measurement], value: Callable[[Measurement], float]) -> float:
    return median(value(result) for result in results)


def unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
