"""Figures computed from records: rates, percentiles, their confidence intervals. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from nereid_client.tools.perf.generator.job import COLUMNS, End, Rows

PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
_INTENDED, _NOTICED, _SENT, _ENDED, _STATUS, _FIRST, _RESPONSES = range(len(COLUMNS))
_BATCHES: Final = 10
_POINTS: Final = 60
_STUDENT: Final = 2.262
"""97.5% quantile of Student's t with 9 degrees of freedom."""
_CURVE: Final = (
    *range(0, 90, 5),
    *(90 + i / 2 for i in range(18)),
    *(99 + i / 20 for i in range(18)),
    *(99.9, 99.95, 99.99, 99.995, 99.999, 100),
)


@dataclass(frozen=True)
class Spread:
    """Durations in milliseconds: mean, largest, and percentiles by name, such as "p99.9"."""

    mean: float
    max: float
    percentiles: dict[str, float]

    def __getitem__(self, name: str) -> float:
        return self.mean if name == "mean" else self.percentiles[name]


@dataclass(frozen=True)
class Interval:
    """A 95% confidence interval."""

    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Return whether they have a value in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Window:
    """A part of a level: answers and requests a second, and the latency in ms by which it is compared.

    Attributes:
        end: nanoseconds of the clock of the records.
    """

    rate: float
    latency_ms: float
    errors: int
    begun: float
    end: int = 0


def percentile(values: Any, percent: float) -> float:
    """Return a percentile: the smallest value that so many percent do not exceed; NaN of none."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else float("nan")


def spread(nanoseconds: Any, more: Sequence[float] = ()) -> Spread:
    """Return the spread of durations."""
    if not len(nanoseconds):
        return Spread(0.0, 0.0, {name_of(p): 0.0 for p in (*PERCENTILES, *more)})
    ms = np.asarray(nanoseconds) / 1e6
    named = {name_of(p): percentile(ms, p) for p in sorted({*PERCENTILES, *more})}
    return Spread(float(ms.mean()), float(ms.max()), named)


def name_of(percent: float) -> str:
    """Return the name of a percentile."""
    return f"p{percent:g}"


def within(rows: Rows, start: int, end: int) -> Rows:
    """Return the records of requests that were to begin in a time."""
    begun = rows[:, _INTENDED]
    found: Rows = rows[(begun >= start) & (begun < end)]
    return found


def ended_since(rows: Rows, start: int) -> int:
    """Return how many requests have ended since a moment."""
    return int((rows[:, _ENDED] >= start).sum())


def answered(rows: Rows) -> Rows:
    """Return the records that count for latencies: what the server refused at once was no answer."""
    status = rows[:, _STATUS]
    found: Rows = rows[(status == End.OK) | (status == End.LATE)]
    return found


def latencies(rows: Rows) -> Any:
    """Return nanoseconds from the intended begin to the end."""
    kept = answered(rows)
    return kept[:, _ENDED] - kept[:, _INTENDED]


def service_times(rows: Rows) -> Any:
    """Return nanoseconds from the sending to the end."""
    kept = answered(rows)
    return kept[:, _ENDED] - kept[:, _SENT]


def lateness(rows: Rows) -> Any:
    """Return by how many nanoseconds the generator was late."""
    return rows[:, _NOTICED] - rows[:, _INTENDED]


def first_responses(rows: Rows) -> Any:
    """Return nanoseconds from the intended begin to the first response of each stream that had one."""
    had = rows[rows[:, _FIRST] > 0]
    return had[:, _FIRST] - had[:, _INTENDED]


def gaps(rows: Rows, moments: Any, start: int, end: int) -> Any:
    """Return nanoseconds between the responses of each stream that was to begin in a time.

    Args:
        moments: of the responses of all records, one record after the other.
    """
    record = np.repeat(np.arange(len(rows)), rows[:, _RESPONSES])
    begun = rows[record[1:], _INTENDED]
    kept = (record[1:] == record[:-1]) & (begun >= start) & (begun < end)
    return np.diff(moments)[kept]


def response_moments(rows: Rows, moments: Any, start: int, end: int) -> Iterator[tuple[int, Any]]:
    """Yield the begin of each good request of a time, and the moments of its responses.

    Args:
        moments: of the responses of all records, one record after the other; None without streams.
    """
    last = np.cumsum(rows[:, _RESPONSES])
    for row, to in zip(rows.tolist(), last.tolist(), strict=True):
        if start <= row[_INTENDED] < end and row[_STATUS] == End.OK:
            own = np.array([row[_ENDED]]) if moments is None else moments[to - row[_RESPONSES] : to]
            yield row[_INTENDED], own


def responses(rows: Rows) -> int:
    """Return the number of responses of streams."""
    return int(rows[:, _RESPONSES].sum())


def failures(rows: Rows) -> int:
    """Return the number of requests that failed."""
    return int((rows[:, _STATUS] != End.OK).sum())


def wrong(rows: Rows) -> int:
    """Return the number of answers that were not the expected ones."""
    return int((rows[:, _STATUS] == End.WRONG).sum())


def rate(rows: Rows, start: int, end: int) -> float:
    """Return the good answers a second that came in a time."""
    ended = rows[rows[:, _STATUS] == End.OK, _ENDED]
    return float(((ended >= start) & (ended < end)).sum()) / max((end - start) / 1e9, 1e-9)


def window(rows: Rows, start: int, end: int, percent: float) -> Window:
    """Return the figures of one window."""
    own = within(rows, start, end)
    taken = latencies(own) / 1e6
    latency = percentile(taken, percent) if percent else (float(taken.mean()) if len(taken) else 0.0)
    return Window(rate(rows, start, end), latency, failures(own), len(own) / ((end - start) / 1e9), end)


def intervals(rows: Rows, start: int, end: int, percents: Sequence[float]) -> dict[str, Interval]:
    """Return 95% intervals of the rate and of percentiles, by the spread of ten parts of the time.

    There are none where a part has no answers. Requests of one moment share their fate, so intervals of
    independent samples would be too narrow.
    """
    edges = np.linspace(start, end, _BATCHES + 1).astype(np.int64)
    rates, parts = [], []
    for low, high in pairwise(edges.tolist()):
        rates.append(rate(rows, low, high))
        parts.append(latencies(within(rows, low, high)) / 1e6)
    found = {"rate": _interval(rate(rows, start, end), rates)}
    if all(len(part) for part in parts):
        whole = latencies(within(rows, start, end)) / 1e6
        for percent in percents:
            own = [percentile(part, percent) for part in parts]
            found[name_of(percent)] = _interval(percentile(whole, percent), own)
    return found


def _interval(value: float, parts: Sequence[float]) -> Interval:
    half = _STUDENT * float(np.std(parts, ddof=1)) / len(parts) ** 0.5
    return Interval(max(value - half, 0.0), value + half)


def agree(windows: Sequence[Window], number: int, stability: float, closed: bool) -> bool:
    """Return whether the last windows agree: rate and latency within a share of their means.

    Requests of an open loop arrive by chance: there it is the share of them that is answered.
    """
    last = windows[-number:]
    if len(last) < number or any(not w.rate for w in last):
        return False
    rates = [w.rate if closed else w.rate / (w.begun or 1) for w in last]
    for values in (rates, [w.latency_ms for w in last]):
        mean = sum(values) / number
        if any(abs(value - mean) > stability * mean for value in values):
            return False
    return True


def longest_silence(rows: Rows, start: int) -> tuple[float, float]:
    """Return the longest time without an answer while requests waited, and when it began, in seconds."""
    own = rows[(rows[:, _ENDED] >= start)]
    if len(own) < 2:
        return 0.0, 0.0
    ended = np.sort(own[:, _ENDED])
    began = np.sort(own[:, _INTENDED])
    # A silence before the k-th answer counts from the moment when a request was open that was not answered.
    waiting_since = np.maximum(ended[:-1], began[1 : len(ended)])
    silence = ended[1:] - waiting_since
    place = int(silence.argmax())
    return float(silence[place]) / 1e9, float(waiting_since[place] - start) / 1e9


def curve(rows: Rows) -> list[tuple[float, float]]:
    """Return points of the distribution of latencies: percent, ms."""
    taken = latencies(rows) / 1e6
    return [(float(p), percentile(taken, p)) for p in _CURVE] if len(taken) else []


def timeline(rows: Rows, start: int, end: int) -> list[tuple[float, float, float, float]]:
    """Return points over time: seconds, answers a second, p50 and p99 in ms of requests begun then."""
    edges = np.linspace(start, end, _POINTS + 1).astype(np.int64)
    points = []
    for low, high in pairwise(edges.tolist()):
        taken = latencies(within(rows, low, high)) / 1e6
        if len(taken):
            seconds = (low - start) / 1e9
            points.append((seconds, rate(rows, low, high), percentile(taken, 50), percentile(taken, 99)))
    return points
