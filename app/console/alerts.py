"""Alerts out of samples of metrics over the last minutes, by the rules that Prometheus has too."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from app.core.observability.alerts import (
    COMPUTE_S,
    FAILURES,
    PENDING,
    QUEUE_S,
    QUEUED,
    READ,
    RESTARTS,
    RULES,
    SUCCESSES,
    Rule,
)
from app.core.observability.counters import VersionCounters

MAX_SERIES: Final = 20_000
"""Those beyond are not looked at."""
_STEP_S: Final = 30.0
_KEPT: Final = 32
"""Values of a counter that are kept, each half a minute apart: longer than any rule looks back."""
_GONE_S: Final = 25.0
"""A series that nobody has told of for so long is over."""
_FORGOTTEN_S: Final = _KEPT * _STEP_S
"""Nothing is kept of a process of which nobody has told for so long: no rule looks back as far."""
_COUNTERS: Final = frozenset(
    metric
    for rule in RULES
    if rule.reading == "increase"
    for metric in (*rule.metrics, *rule.over, *rule.per)
)
Labels = tuple[tuple[str, str], ...]
Samples = Mapping[str, Sequence[Mapping[str, Any]]]


class _Series:
    """The values of one metric with one set of labels; those of a counter do not fall."""

    def __init__(self, at: float, value: float, counts: bool) -> None:
        self.at, self.value = at, value
        self._counts = counts
        self._times, self._values = array("d", [at]), array("d", [value])

    def add(self, at: float, value: float) -> None:
        if self._counts and value < self.value:  # whoever counts has begun anew
            del self._times[:], self._values[:]
        self.at, self.value = at, value
        if not self._times or at - self._times[-1] >= _STEP_S:
            self._times.append(at)
            self._values.append(value)
            del self._times[:-_KEPT], self._values[:-_KEPT]

    def increase(self, since: float) -> float:
        """Return by how much it has grown since then, as far as that is known."""
        place = bisect_left(self._times, since)
        return self.value - self._values[place] if place < len(self._values) else 0.0

    def growth(self, at: float, within_s: float) -> float:
        """Return the least value of the last while, if all of a while before that one were less; else 0."""
        times, values = self._times, self._values
        least = min([self.value, *values[bisect_left(times, at - within_s) :]])
        first, end = bisect_left(times, at - 3 * within_s), bisect_right(times, at - 2 * within_s)
        return least if first < end and least > max(values[first:end]) else 0.0

    def read(self, rule: Rule, at: float) -> float:
        """Return what a rule reads of it; see `Reading`."""
        if rule.reading == "increase":
            return self.increase(at - rule.within_s)
        if rule.reading == "growth":
            return self.growth(at, rule.within_s)
        return at - self.value if rule.reading == "since" else self.value


class Alerts:
    """Keeps what rules read, and says what they find."""

    def __init__(self) -> None:
        self._series: dict[str, dict[Labels, _Series]] = {metric: {} for metric in READ}
        self._told: dict[str, float] = {}

    def add(self, at: float, metrics: Samples, process: str = "") -> None:
        """Add samples of a process, with `value` beside their labels.

        A counter that was not among those that it told before has counted from zero since then.
        """
        before = self._told.get(process)
        for metric in metrics.keys() & READ:
            for sample in metrics[metric]:
                labels = {name: str(text) for name, text in sample.items() if name != "value"}
                self._add(at, metric, labels | {"process": process}, float(sample["value"]), before)
        self._told[process] = at

    def add_counters(self, at: float, name: str, version: str, counters: VersionCounters) -> None:
        """Add what a version has counted."""
        told = {"model": name, "version": version}
        values = {
            SUCCESSES: counters.ok,
            RESTARTS: counters.restarts,
            PENDING: counters.pending,
            QUEUE_S: counters.queue_ns / 1e9,
            QUEUED: counters.ok,
            COMPUTE_S: counters.compute_ns / 1e9,
        }
        for metric, value in values.items():
            self._add(at, metric, told, value)
        other = counters.failed - counters.cancelled - counters.rejected
        for reason, count in (("REJECTED", counters.rejected), ("OTHER", other)):
            self._add(at, FAILURES, {**told, "reason": reason}, count)

    def stand(self, at: float) -> None:
        """Take the counters of versions as they were: only those that change are told."""
        for metric in (SUCCESSES, RESTARTS, FAILURES, PENDING, QUEUE_S, QUEUED, COMPUTE_S):
            for series in self._series[metric].values():
                series.add(at, series.value)

    def _add(
        self, at: float, metric: str, labels: Mapping[str, str], value: float, zero_at: float | None = None
    ) -> None:
        found, key, counts = self._series[metric], tuple(sorted(labels.items())), metric in _COUNTERS
        if key not in found:
            if len(found) >= MAX_SERIES:
                return
            first = (at, value) if zero_at is None or not counts else (zero_at, 0.0)
            found[key] = _Series(*first, counts)
        found[key].add(at, value)

    def forget(self, names: set[tuple[str, str]]) -> None:
        """Forget all versions but these."""
        for series in self._series.values():
            for key in [key for key in series if not _is_known(dict(key), names)]:
                del series[key]

    def found(self, at: float) -> list[dict[str, Any]]:
        """Return what people are told: name, severity, what, advice, page and model; the worst first."""
        for series in self._series.values():
            for key in [key for key, each in series.items() if at - each.at > _FORGOTTEN_S]:
                del series[key]
        self._told = {each: told for each, told in self._told.items() if at - told <= _FORGOTTEN_S}
        alerts = [alert for rule in RULES for alert in self._by(rule, at)]
        return sorted(alerts, key=lambda alert: (alert["severity"] != "critical", alert["what"]))

    def _by(self, rule: Rule, at: float) -> Iterator[dict[str, Any]]:
        sums = self._sums(rule, rule.metrics, at)
        over, per = (self._sums(rule, metrics, at, chosen=False) for metrics in (rule.over, rule.per))
        for labels, value in sums.items():
            share = _share(value, over.get(labels), rule.over)
            if share > rule.above and _share(value, per.get(labels), rule.per) > rule.least:
                named = dict(labels)
                yield {
                    "name": rule.name,
                    "severity": rule.severity,
                    "what": rule.says.format_map(_Known(named)).strip(),
                    "advice": rule.advice,
                    "page": rule.page,
                    "model": named.get("model", ""),
                    "version": named.get("version", ""),
                }

    def _sums(
        self, rule: Rule, metrics: Iterable[str], at: float, chosen: bool = True
    ) -> dict[Labels, float]:
        """Add up what a rule reads, for each set of the labels that its text names.

        Of values that are no counters the largest counts: every ingress tells those of the whole server.
        """
        sums: dict[Labels, float] = {}
        for metric in metrics:
            for key, series in self._series[metric].items():
                labels = dict(key)
                counts = all(labels.get(name) in values for name, values in rule.labels.items())
                adds = rule.reading == "increase"
                if (adds or at - series.at <= _GONE_S) and (counts or not chosen):
                    shown = tuple((name, text) for name, text in key if f"{{{name}}}" in rule.says)
                    value, known = series.read(rule, at), sums.get(shown)
                    sums[shown] = value if known is None else known + value if adds else max(known, value)
        return sums


def _share(value: float, of: float | None, asked: tuple[str, ...]) -> float:
    """Return what a value is of another; itself where none is asked for, 0 of nothing."""
    return value / of if of else 0.0 if asked else value


class _Known(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return ""


def _is_known(labels: Mapping[str, str], names: set[tuple[str, str]]) -> bool:
    """Whether a series is of a version among these, or of none."""
    return "version" not in labels or (labels.get("model", ""), labels["version"]) in names
