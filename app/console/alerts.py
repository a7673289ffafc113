"""Alerts out of samples of metrics over the last minutes, by the rules that Prometheus has too."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from app.core.observability.alerts import FAILURES, READ, RESTARTS, RULES, SUCCESSES, Rule
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
Labels = tuple[tuple[str, str], ...]
Samples = Mapping[str, Sequence[Mapping[str, Any]]]


class _Series:
    """The values of one metric with one set of labels."""

    def __init__(self, at: float, value: float) -> None:
        self.at, self.value = at, value
        self._kept = deque([(at, value)], maxlen=_KEPT)

    def add(self, at: float, value: float) -> None:
        if value < self.value:  # whoever counts has begun anew
            self._kept.clear()
        self.at, self.value = at, value
        if not self._kept or at - self._kept[-1][0] >= _STEP_S:
            self._kept.append((at, value))

    def increase(self, since: float) -> float:
        """Return by how much it has grown since then, as far as that is known."""
        return self.value - next((value for at, value in self._kept if at >= since), self.value)


class Alerts:
    """Keeps what rules read, and says what they find."""

    def __init__(self) -> None:
        self._series: dict[str, dict[Labels, _Series]] = {metric: {} for metric in READ}

    def add(self, at: float, metrics: Samples, process: str = "") -> None:
        """Add samples of a process, with `value` beside their labels."""
        for metric in metrics.keys() & READ:
            for sample in metrics[metric]:
                labels = {name: str(text) for name, text in sample.items() if name != "value"}
                self._add(at, metric, labels | {"process": process}, float(sample["value"]))

    def add_counters(self, at: float, name: str, version: str, counters: VersionCounters) -> None:
        """Add what a version has counted."""
        told = {"model": name, "version": version}
        self._add(at, SUCCESSES, told, counters.ok)
        self._add(at, RESTARTS, told, counters.restarts)
        other = counters.failed - counters.cancelled - counters.rejected
        for reason, count in (("REJECTED", counters.rejected), ("OTHER", other)):
            self._add(at, FAILURES, {**told, "reason": reason}, count)

    def stand(self, at: float) -> None:
        """Take the counters of versions as they were: only those that change are told."""
        for metric in (SUCCESSES, RESTARTS, FAILURES):
            for series in self._series[metric].values():
                series.add(at, series.value)

    def _add(self, at: float, metric: str, labels: Mapping[str, str], value: float) -> None:
        found, key = self._series[metric], tuple(sorted(labels.items()))
        if key in found:
            found[key].add(at, value)
        elif len(found) < MAX_SERIES:
            found[key] = _Series(at, value)

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
        alerts = [alert for rule in RULES for alert in self._by(rule, at)]
        return sorted(alerts, key=lambda alert: (alert["severity"] != "critical", alert["what"]))

    def _by(self, rule: Rule, at: float) -> Iterator[dict[str, Any]]:
        sums = self._sums(rule, rule.metrics, at)
        of = self._sums(rule, rule.over, at, chosen=False) if rule.over else {}
        for labels, value in sums.items():
            measure = value / of[labels] if of.get(labels) else 0.0 if rule.over else value
            if measure > rule.above:
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
        """Add up what a rule reads, for each set of the labels that its text names."""
        sums: dict[Labels, float] = {}
        for metric in metrics:
            for key, series in self._series[metric].items():
                labels = dict(key)
                counts = all(labels.get(name) in values for name, values in rule.labels.items())
                current = rule.within_s or at - series.at <= _GONE_S
                if current and (counts or not chosen):
                    value = series.increase(at - rule.within_s) if rule.within_s else series.value
                    shown = tuple((name, text) for name, text in key if f"{{{name}}}" in rule.says)
                    sums[shown] = sums.get(shown, 0.0) + value
        return sums


class _Known(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return ""


def _is_known(labels: Mapping[str, str], names: set[tuple[str, str]]) -> bool:
    """Whether a series is of a version among these, or of none."""
    return "version" not in labels or (labels.get("model", ""), labels["version"]) in names
