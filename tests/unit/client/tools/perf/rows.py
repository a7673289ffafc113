"""Records of requests, and results of them, for tests."""

from collections.abc import Sequence

import numpy as np

from nereid_client.tools.perf.figures import Window
from nereid_client.tools.perf.generator.job import End, Level, Rows
from nereid_client.tools.perf.result import Result, Seen, result_of
from nereid_client.tools.perf.server_share import Share

MS = 1_000_000
SECOND = 1000 * MS
RATE = Level("rate", 100)


def rows(latencies_ms: Sequence[float], every_ms: float = 10, end: End = End.OK, late_ms: float = 0) -> Rows:
    """Requests that were to begin one after the other, each with its latency."""
    found = []
    for number, latency in enumerate(latencies_ms):
        begin = round(number * every_ms * MS)
        sent = begin + round(late_ms * MS)
        found.append((begin, sent, sent, begin + round(latency * MS), int(end), 0, 0))
    return np.array(found, np.int64).reshape(-1, 7)


def result(
    latencies_ms: Sequence[float],
    level: Level = RATE,
    records: Rows | None = None,
    server: Share | None = None,
    agreed: bool = True,
    busy: float = 0.1,
    batch: int = 1,
) -> Result:
    """The result of requests 10 ms apart."""
    made = rows(latencies_ms) if records is None else records
    end = len(latencies_ms) * 10 * MS
    windows = (Window(100, 1, 0, 100),)
    return result_of(
        Seen(level, made, 0, end, windows, agreed, batch=batch, busy=busy, server=server, percent=75)
    )
