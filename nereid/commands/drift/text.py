"""Drift as text for a terminal. Pure."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from app.core.drift.status import DriftStatus, FeatureStatus
from nereid.commands.columns import columns, printable

_SHOWN: Final = 40
"""Features in the table, those with the most evidence first."""
KINDS: Final = {
    "nan": "have NaN",
    "range": "are far outside of the reference's range",
    "new": "have a new category",
    "zeros": "are all zeros",
    "shape": "have another shape",
}


def screen(status: DriftStatus) -> list[str]:
    """Return the lines that show the drift of a version."""
    rows = [("", "evidence", "PSI", "JS", "Wasserstein", "KS"), *map(_row, ordered(status)[:_SHOWN])]
    left = len(status.features) - _SHOWN
    lines = [headline(status), about(status), "", *columns(rows).split("\n")]
    lines += [f"and {left} more features, with less evidence"] if left > 0 else []
    lines += ["", f"An alarm from evidence {1 / status.rules.alpha:,.0f} on; distances judge nothing."]
    return [printable(line) for line in [*lines, *quality(status)]]


def headline(status: DriftStatus) -> str:
    """Say whether there is an alarm, and since when."""
    name = f"{status.model} version {status.version}"
    if not status.since:
        return f"{name}: like its reference" if status.recent else f"{name}: too few requests so far"
    changed = [feature.feature.name for feature in ordered(status) if feature.alarmed]
    return f"{name}: CHANGED since {clock(status.since)} in {', '.join(changed)}"


def about(status: DriftStatus) -> str:
    """Say what is compared with what."""
    text = f"{status.recent:,} recent rows of {status.rows:,} counted, beside {status.reference_rows:,}"
    text += f" of {status.source} ({clock(status.made)})"
    if status.confidence is not None:
        text += f"; mean confidence {status.confidence:.1%}"
    return text


def ordered(status: DriftStatus) -> list[FeatureStatus]:
    """Return the features, those with the most evidence first."""
    return sorted(status.features, key=lambda each: (-each.evidence, each.feature.name))


def quality(status: DriftStatus) -> Iterator[str]:
    """Say which rows need no statistics to be remarkable."""
    for tensor, kinds in sorted(status.quality.items()):
        for kind, number in sorted(kinds.items()):
            yield f"{tensor}: {number:,} values of {status.rows:,} rows {KINDS.get(kind, kind)}"


def _row(status: FeatureStatus) -> Sequence[str]:
    found = status.distances
    mark = "! " if status.alarmed else "  "
    evidence = f"{status.evidence:,.3g}" if status.evidence < 1e5 else f"{status.evidence:.1e}"
    if found is None:
        return (mark + status.feature.name, evidence, "", "", "", "")
    parts = (found.psi, found.js, found.wasserstein, found.ks)
    return (mark + status.feature.name, evidence, *("" if part is None else f"{part:.3f}" for part in parts))


def clock(at: float) -> str:
    """Return a moment as text."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
