"""Results in the columns of perf_analyzer's CSV. Pure."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from typing import Final

from nereid_client.tools.digits import all_digits
from nereid_client.tools.perf.result import Result

_PARTS: Final = (
    "Client Send",
    "Network+Server Send/Recv",
    "Server Queue",
    "Server Compute Input",
    "Server Compute Infer",
    "Server Compute Output",
    "Client Recv",
)
_MORE: Final = ("Avg latency", "Avg service time", "Mean batch", "Failed", "Lateness p99")


def csv_text(results: Sequence[Result], percent: float = 0, verbose: bool = False) -> str:
    """Return a row for each result, by rate; durations are whole microseconds, as perf_analyzer has them.

    What is sent and received by the client is part of network and server here, so these two are 0.
    """
    kind = results[0].level.kind if results else "concurrency"
    first = "Concurrency" if kind == "concurrency" else "Request Rate"
    names = [f"p{p}" for p in sorted({50, 90, 95, 99, *([int(percent)] if percent else [])})]
    head = [first, "Inferences/Second", *_PARTS, *(f"{name} latency" for name in names)]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head, *(_MORE if verbose else ())])
    for result in results:
        writer.writerow([*_row(result, names), *(_more(result) if verbose else ())])
    return text.getvalue()


def _row(result: Result, names: Sequence[str]) -> list[str]:
    parts = _parts(result)
    latencies = [str(round(result.latency[name] * 1e3)) for name in names]
    return [all_digits(result.level.value), all_digits(result.inferences), *map(str, parts), *latencies]


def _parts(result: Result) -> list[int]:
    share = result.server
    if share is None:
        return [0, round(result.service.mean * 1e3), 0, 0, 0, 0, 0]
    inside = (share.queue_us, share.compute_input_us, share.compute_infer_us, share.compute_output_us)
    outside = max(result.service.mean * 1e3 - sum(inside), 0.0)
    return [0, round(outside), *map(round, inside), 0]


def _more(result: Result) -> list[str]:
    batch = result.server.mean_batch if result.server else 0.0
    return [
        str(round(result.latency.mean * 1e3)),
        str(round(result.service.mean * 1e3)),
        f"{batch:.2f}",
        str(result.failed),
        str(round(result.lateness["p99"] * 1e3)),
    ]
