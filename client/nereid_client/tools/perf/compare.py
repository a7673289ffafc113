"""A run beside an earlier one: a verdict for each load that both have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nereid_client.tools.digits import all_digits
from nereid_client.tools.perf.figures import Interval
from nereid_client.tools.perf.options import PerfError
from nereid_client.tools.perf.result import FORMAT

_METRICS: Final = ("rate", "p50", "p99")
_MORE_ERRORS: Final = 0.001


class Change(NamedTuple):
    """A figure then and now; `verdict` is "worse", "better", "same" or "void"."""

    load: str
    metric: str
    old: float
    new: float
    verdict: str

    @property
    def percent(self) -> float:
        """By how much it has changed."""
        return 100 * (self.new / self.old - 1) if self.old else 0.0


def compare(old: Mapping[str, Any], new: Mapping[str, Any], threshold: float) -> list[Change]:
    """Return the changes of all loads that both documents have.

    A figure is worse when it is so by more than the threshold, a share, and the 95% intervals of both runs
    have nothing in common: noise is no change.

    Raises:
        PerfError: they cannot be compared.
    """
    if old.get("format") != FORMAT:
        raise PerfError("--compare: the file was written by another version, or is none of --json")
    for name in ("model", "protocol", "batch"):
        if old.get(name) != new.get(name):
            raise PerfError(f"--compare: the {name} was '{old.get(name)}', and is '{new.get(name)}'")
    changes = []
    if old.get("slo") and new.get("slo"):
        changes.append(_slo_change(old["slo"], new["slo"], threshold))
    earlier = {_key(level): level for level in old["levels"]}
    for level in new["levels"]:
        if _key(level) in earlier:
            changes += _level_changes(earlier[_key(level)], level, threshold)
    if not changes:
        raise PerfError("--compare: no load is in both runs: give the same --rate or --concurrency")
    return changes


def worse(changes: Sequence[Change]) -> bool:
    """Return whether anything is worse."""
    return any(change.verdict == "worse" for change in changes)


def unknown(changes: Sequence[Change]) -> bool:
    """Return whether there is no verdict at all."""
    return bool(changes) and all(change.verdict == "void" for change in changes)


def _key(level: Mapping[str, Any]) -> tuple[str, float]:
    return level["level"]["kind"], float(level["level"]["value"])


def _slo_change(old: Mapping[str, Any], new: Mapping[str, Any], threshold: float) -> Change:
    then, now = float(old["rate"]), float(new["rate"])
    verdict = _verdict(then, now, threshold, True)
    return Change("slo", "rate", then, now, verdict)


def _level_changes(old: Mapping[str, Any], new: Mapping[str, Any], threshold: float) -> list[Change]:
    kind, value = _key(new)
    load = f"{all_digits(value)}/s" if kind == "rate" else f"{all_digits(value)} in flight"
    void = bool(old["void"] or new["void"])
    changes = []
    for metric in _METRICS:
        then, now = _figure(old, metric), _figure(new, metric)
        verdict = _verdict(then, now, threshold, metric == "rate")
        if verdict != "same" and _interval(old, metric).overlaps(_interval(new, metric)):
            verdict = "same"
        changes.append(Change(load, metric, then, now, "void" if void else verdict))
    then, now = (level["failed"] / max(level["requests"], 1) for level in (old, new))
    if now > then + _MORE_ERRORS:
        changes.append(Change(load, "failed", then, now, "worse"))
    return changes


def _verdict(then: float, now: float, threshold: float, more_is_better: bool) -> str:
    if not then or abs(now / then - 1) <= threshold:
        return "same"
    return "better" if (now > then) == more_is_better else "worse"


def _figure(level: Mapping[str, Any], metric: str) -> float:
    return float(level["rate"] if metric == "rate" else level["latency"]["percentiles"][metric])


def _interval(level: Mapping[str, Any], metric: str) -> Interval:
    known = level["intervals"].get(metric)
    return Interval(**known) if known else Interval(0.0, float("inf"))
