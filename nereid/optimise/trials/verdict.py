"""What a candidate's trial has shown, and whether it may replace the present form. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, Literal

import msgspec

from nereid_client.comparison.acceptance import accept, rows_needed

Status = Literal["fits", "refused", "inconclusive", "failed", "skipped"]
LEAST_PAIRS: Final = 64
"""Rows after which a candidate that cannot be right any more, or is slow, is left."""
_HOPELESS: Final = 0.9
"""Of the gain that is asked for: what does less after the first rows will not do it after the last."""
_PARTS: Final = 10


class Wanted(msgspec.Struct, frozen=True):
    """What a candidate has to show.

    Attributes:
        agreement: the share of the rows whose answers are within the rules.
        confidence: with which that has to be shown.
        gain: times as fast as the present form, on one thread.
    """

    agreement: float = 0.995
    confidence: float = 0.99
    gain: float = 1.1

    @property
    def allowed(self) -> float:
        """The share of the rows that may differ."""
        return 1 - self.agreement


class Bad(msgspec.Struct, frozen=True):
    """A row whose answer differs: its key, how far it is from the rules, and why."""

    row: str
    severity: float
    why: str


class Seen(msgspec.Struct, frozen=True):
    """What a trial has measured.

    Attributes:
        rows: that were to be compared; `compared` of them were.
        bad: answers outside the rules, failures among them; `near_ties` of the others say nothing.
        absolute, cosine: the largest difference of two elements, the lowest cosine.
        noise: how far two answers of the present form are from each other, in units of the rules.
        present_ms, candidate_ms: the median of the processor time of a request, on one thread, by blocks.
        ratio, low, high: how many times as fast, with the interval over ten parts of the rows.
        memory_mb: that the candidate's load took; of the present form's `present_mb`.
        file_mb, present_file_mb: of the files that each is loaded from.
        shapes: of the inputs; the first request with each is not timed.
        worst: up to ten rows.
    """

    rows: int = 0
    compared: int = 0
    bad: int = 0
    near_ties: int = 0
    absolute: float = 0.0
    cosine: float = 1.0
    noise: float = 0.0
    present_ms: float = 0.0
    candidate_ms: float = 0.0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    memory_mb: float = 0.0
    present_mb: float = 0.0
    file_mb: float = 0.0
    present_file_mb: float = 0.0
    shapes: int = 0
    worst: tuple[Bad, ...] = ()

    @property
    def counted(self) -> int:
        """Rows that speak for the candidate or against it."""
        return self.compared - self.near_ties

    @property
    def agreement(self) -> float:
        """The share of these rows that are within the rules."""
        return 1 - self.bad / self.counted if self.counted else 0.0


class Outcome(msgspec.Struct, frozen=True):
    """What has become of a candidate.

    Attributes:
        why: in a sentence, with figures.
        stage: at which it ended: `build`, `load`, `check` or "" before any.
        seconds: that its trial took.
        peak_mb: the most memory of its process.
    """

    name: str
    about: str
    status: Status
    why: str
    stage: str = ""
    seen: Seen = Seen()
    seconds: float = 0.0
    peak_mb: float = 0.0


def judge(seen: Seen, wanted: Wanted) -> tuple[Status, str]:
    """Return whether a candidate fits, and why, or why not."""
    if seen.noise > 1:
        times = f"{seen.noise:.3g} times what the rules allow"
        return "inconclusive", f"the present form differs from itself by {times}: they are too tight"
    shown = accept(seen.bad, seen.counted, wanted.allowed, wanted.confidence)
    between = f"({seen.low:.2f} to {seen.high:.2f})"
    speed = f"{seen.ratio:.2f} times as fast"
    if seen.bad and not shown.accepted:
        most = f"up to {shown.bound:.2%}, {wanted.allowed * 100:.4g}% allowed"
        return "refused", f"{_differing(seen)} ({most}); {speed}"
    if seen.compared >= LEAST_PAIRS and seen.high < wanted.gain:
        return "refused", f"{speed} {between}: less than {wanted.gain:g}"
    if not shown.accepted:
        return "inconclusive", f"{shown}; {speed}"
    if seen.low < wanted.gain:
        return "inconclusive", f"{speed} {between}: {wanted.gain:g} is not shown"
    return "fits", f"{seen.agreement:.2%} of {seen.counted:,} rows agree; {speed} {between}"


def _differing(seen: Seen) -> str:
    return f"{seen.bad:,} of {seen.counted:,} rows differ, {seen.agreement:.2%} agree"


def hopeless(seen: Seen, wanted: Wanted) -> bool:
    """Return whether the rows that are left cannot make a candidate fit any more."""
    if seen.compared < LEAST_PAIRS:
        return False
    left = seen.rows - seen.compared
    possible = seen.counted + left
    too_bad = bool(seen.bad) and rows_needed(seen.bad, wanted.allowed, wanted.confidence) > possible
    return too_bad or seen.high < _HOPELESS * wanted.gain


def ratios(present: Sequence[float], candidate: Sequence[float]) -> tuple[float, float, float]:
    """Return how many times as fast a candidate is: the median of the pairs, and the range over ten parts."""
    pairs = [a / b for a, b in zip(present, candidate, strict=True) if b > 0]
    if not pairs:
        return 0.0, 0.0, 0.0
    size = max(len(pairs) // _PARTS, 1)
    parts = [median(pairs[at : at + size]) for at in range(0, len(pairs) - size + 1, size)]
    return median(pairs), min(parts), max(parts)
