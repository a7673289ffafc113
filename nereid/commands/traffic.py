"""What a server's metrics say of each model's requests between two looks. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

_LINE: Final = re.compile(
    r"(nv_inference_request_success|nv_inference_request_failure|nv_inference_pending_request_count"
    r"|nereid_request_duration_seconds_bucket)\{(.*)\} (\S+)"
)
_LABEL: Final = re.compile(r'(model|version|le)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")

Version = tuple[str, str]
"""The name and version of a model."""


@dataclass
class Counted:
    """What one look has found of a version; `buckets` counts durations up to so many seconds."""

    ok: float = 0.0
    failed: float = 0.0
    pending: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Traffic:
    """Requests of a version between two looks; `p99_ms` is None if none was answered."""

    requests_per_second: float
    failures_per_second: float
    pending: int
    p99_ms: float | None


def read(text: str) -> dict[Version, Counted]:
    """Return the counts of a page of metrics."""
    found: dict[Version, Counted] = {}
    for name, labels, value in _LINE.findall(text):
        named = {key: _ESCAPED.sub(_unescaped, own) for key, own in _LABEL.findall(labels)}
        counted = found.setdefault((named.get("model", ""), named.get("version", "")), Counted())
        if name.endswith("success"):
            counted.ok += float(value)
        elif name.endswith("failure"):
            counted.failed += float(value)
        elif name.endswith("count"):
            counted.pending += float(value)
        else:
            bound = float(named["le"])
            counted.buckets[bound] = counted.buckets.get(bound, 0.0) + float(value)
    return found


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def between(
    before: Mapping[Version, Counted], after: Mapping[Version, Counted], seconds: float
) -> dict[Version, Traffic]:
    """Return the traffic of each version; counters that are lower than before began anew."""
    return {version: _traffic(before.get(version, Counted()), now, seconds) for version, now in after.items()}


def _traffic(before: Counted, now: Counted, seconds: float) -> Traffic:
    if now.ok < before.ok or now.failed < before.failed:
        before = Counted()
    buckets = [
        (bound, count - before.buckets.get(bound, 0.0)) for bound, count in sorted(now.buckets.items())
    ]
    ok, failed = now.ok - before.ok, now.failed - before.failed
    p99 = quantile(buckets, 0.99)
    return Traffic(
        round((ok + failed) / seconds, 1),
        round(failed / seconds, 1),
        round(now.pending),
        None if p99 is None else round(p99 * 1e3, 3),
    )


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a quantile of cumulative buckets, as Prometheus estimates it; None of nothing."""
    if not buckets or not (total := buckets[-1][1]):
        return None
    below = counted = 0.0
    for bound, count in buckets:
        if count >= share * total:
            if bound == float("inf"):
                return below
            return below + (bound - below) * (share * total - counted) / (count - counted)
        below, counted = bound, count
    return below
