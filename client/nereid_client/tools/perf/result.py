"""The result of a level, and what is wrong with it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nereid_client.tools.perf import figures
from nereid_client.tools.perf.figures import Interval, Spread, Window
from nereid_client.tools.perf.generator.job import Level, Rows
from nereid_client.tools.perf.server_share import Share

FORMAT: Final = 1
"""Of the JSON; a comparison refuses another one."""
_SILENCE_S: Final = 0.3
_UNUSUAL: Final = 5.0
"""So many times an answer's usual time without one is a pause."""
_LATE: Final = {"p50": 0.05, "p99": 0.20}
"""The generator's own lateness, as a share of the latency, from which a level is void."""
_LATE_MS: Final = 0.25
"""Less than that any client takes to wake up."""
_BUSY: Final = 0.80
_KEPT_UP: Final = 0.98


@dataclass(frozen=True)
class Streams:
    """Responses of streams: from the intended begin to the first, and between two, in ms."""

    responses: int
    per_second: float
    first: Spread
    gap: Spread


@dataclass(frozen=True)
class Result:
    """What a level was measured to be.

    Attributes:
        seconds: of the measurement, without warm-up.
        offered: requests a second that were to begin; 0 in a closed loop.
        rate: requests a second that were answered well; times `batch` are inferences.
        latency: ms, from the intended begin.
        service: ms, from the sending.
        lateness: ms, of the generator itself.
        busy: CPU of the busiest generator, a share of a core.
        intervals: 95%, of "rate", "p50", "p99".
        stable: windows agreed; `reasons` tell why they did not.
        void: why the figures are the generator's more than the server's; "" if they are not.
        silence: seconds, the longest without an answer while requests waited.
        curve: of latencies: percent, ms.
        timeline: seconds, answers a second, p50, p99.
    """

    level: Level
    seconds: float
    requests: int
    failed: int
    wrong: int
    errors: dict[str, int]
    offered: float
    rate: float
    batch: int
    latency: Spread
    service: Spread
    lateness: Spread
    busy: float
    intervals: dict[str, Interval]
    windows: tuple[Window, ...]
    stable: bool
    reasons: tuple[str, ...] = ()
    void: str = ""
    server: Share | None = None
    streams: Streams | None = None
    curve: list[tuple[float, float]] = field(default_factory=list)
    timeline: list[tuple[float, float, float, float]] = field(default_factory=list)
    silence: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether it may be something else than the load that makes answers late."""
        usual_s = self.service["p50"] / 1e3
        return bool(self.void) or self.silence > max(_SILENCE_S, _UNUSUAL * usual_s)

    @property
    def inferences(self) -> float:
        """Inferences a second."""
        return self.rate * self.batch

    def as_json(self) -> dict[str, Any]:
        """Return the fields, for `json.dumps`."""
        found = asdict(self)
        found["level"] = {"kind": self.level.kind, "value": self.level.value}
        found["inferences"] = self.inferences
        return found


@dataclass(frozen=True)
class Seen:
    """All that was seen of a level.

    Attributes:
        start, end: nanoseconds; requests that were to begin in between count.
        moments: of the responses of streams, one record after the other; None without streams.
        percent: by which windows are compared; 0 for the mean.
        percents: that are wanted besides the usual ones.
        cut: a signal has ended it.
    """

    level: Level
    rows: Rows
    start: int
    end: int
    windows: tuple[Window, ...]
    agreed: bool
    batch: int = 1
    errors: Mapping[str, int] = field(default_factory=Counter)
    busy: float = 0.0
    server: Share | None = None
    moments: Any = None
    percent: float = 0.0
    percents: Sequence[float] = ()
    cut: bool = False


def result_of(seen: Seen) -> Result:
    """Return the figures of a level."""
    rows = figures.within(seen.rows, seen.start, seen.end)
    seconds = max(seen.end - seen.start, 1) / 1e9
    more = [*([seen.percent] if seen.percent else []), *seen.percents]
    latency = figures.spread(figures.latencies(rows), more)
    late = figures.spread(figures.lateness(rows))
    offered = len(rows) / seconds if seen.level.kind == "rate" else 0.0
    rate = figures.rate(seen.rows, seen.start, seen.end)
    reasons = _reasons(seen, rows, rate, offered)
    return Result(
        seen.level,
        seconds,
        len(rows),
        figures.failures(rows),
        figures.wrong(rows),
        dict(seen.errors),
        offered,
        rate,
        seen.batch,
        latency,
        figures.spread(figures.service_times(rows), more),
        late,
        seen.busy,
        figures.intervals(seen.rows, seen.start, seen.end, (50, 99)),
        seen.windows,
        seen.agreed and not reasons,
        reasons or (() if seen.agreed else ("rate or latency differ between windows",)),
        void_because(late, latency, seen.busy) if len(rows) else "no request was to begin",
        seen.server,
        _streams(seen, rows, seconds),
        figures.curve(rows),
        figures.timeline(seen.rows, seen.start, seen.end),
        figures.longest_silence(seen.rows, seen.start)[0],
    )


def _reasons(seen: Seen, rows: Rows, rate: float, offered: float) -> tuple[str, ...]:
    """Return why the level was not stable, as far as that can be seen."""
    found = ["a signal ended it"] if seen.cut else []
    if failed := figures.failures(rows):
        found.append(f"{failed} of {len(rows)} requests failed")
    if seen.server is not None and seen.server.counted_anew:
        found.append("the model was loaded again meanwhile")
    silence, when = figures.longest_silence(rows, seen.start)
    if silence > _SILENCE_S:
        found.append(f"no answer for {silence:.2f} s, from {when:.1f} s on")
    if offered and rate < _KEPT_UP * offered and not failed:
        found.append(f"the server answers {rate:.0f}/s of the {offered:.0f}/s: requests queue up")
    return tuple(found)


def void_because(late: Spread, latency: Spread, busy: float) -> str:
    """Return why figures are those of the generator; "" if they are not."""
    if busy > _BUSY:
        return f"the generator itself took {100 * busy:.0f}% of a core: give it --processes"
    for name, share in _LATE.items():
        if late[name] > max(share * latency[name], _LATE_MS):
            return (
                f"the generator itself was late: {late[name]:.2f} ms of the {name} of {latency[name]:.2f} ms"
            )
    return ""


def _streams(seen: Seen, rows: Rows, seconds: float) -> Streams | None:
    if seen.moments is None:
        return None
    number = figures.responses(rows)
    first = figures.spread(figures.first_responses(rows))
    gaps = figures.gaps(seen.rows, seen.moments, seen.start, seen.end)
    return Streams(number, number / seconds, first, figures.spread(gaps))
