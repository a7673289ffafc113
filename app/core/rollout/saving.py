"""What a new version saves: processor time a row, beside what the version before it took. Pure.

Both versions are compared minute by minute: the stable one in its last hours, the new one since it answers
everything. Processor time has a part that does not grow with the load (threads that wake up, heartbeats), so
minutes at another load have another time a row. Therefore a line, time over rows, is fitted to the minutes of
the stable version, and says what it would have taken in the minutes of the new one.

The interval is by a bootstrap over blocks of minutes (Künsch, "The jackknife and the bootstrap for general
stationary observations", 1989): what disturbs one minute, such as a neighbour on the machine, mostly disturbs
the next ones too, and single minutes would look like more evidence than they are. With so few blocks the
quantile is Student's. A disturbance that lasts as long as a block is still taken for a difference of the
versions.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from app.core.cost.minutes import MinuteUse
from app.core.rollout.report import Estimate

MIN_MINUTES: Final = 15
"""Minutes with requests that each version must have."""
_FEW: Final = 60
"""Fewer minutes fall into fewer blocks: they have to be longer than what disturbs."""
_STUDENT: Final = {3: 4.303, 5: 2.776}
"""Student's 0.975 quantile of one degree of freedom less, by the number of blocks."""
_DRAWS: Final = 1000
_SLACK: Final = 1.25
"""How far outside of the stable version's loads its line is still believed."""
_FLAT: Final = 1e-6
"""Variance of the load, relative to its square, below which there is no slope."""

Minutes = Any
"""An array of float64: rows, and processor seconds, of minutes."""


class Saving(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a new version saves.

    Attributes:
        stable_minutes, minutes: of both versions that are compared.
        rows: that the new version has answered since it answers everything.
        share: of the processor time that the stable version would have taken: 0.5 for half of it, below 0 if
            the new one takes more; None if nothing can be said yet.
        core_seconds: saved for all these rows; None as `share`.
        stable_ms, new_ms: processor milliseconds a row at the same load.
        waiting: why nothing can be said yet; "" if something can.
    """

    stable_minutes: int = 0
    minutes: int = 0
    rows: int = 0
    share: Estimate | None = None
    core_seconds: Estimate | None = None
    stable_ms: float = 0.0
    new_ms: float = 0.0
    waiting: str = ""

    @property
    def shown(self) -> bool:
        """Whether the new version takes less, with 95 %."""
        return self.share is not None and self.share.low > 0

    @property
    def worse(self) -> bool:
        """Whether it takes more, with 95 %."""
        return self.share is not None and self.share.high < 0


def saving(stable: Sequence[MinuteUse], new: Sequence[MinuteUse], rows: int, seed: int = 0) -> Saving:
    """Return what a new version saves.

    Args:
        stable: whole minutes of the version before, while it answered most requests, the oldest first.
        new: those of the new version since it answers everything.
        rows: that the new version has answered since then.
        seed: of the draws: the same minutes give the same answer.
    """
    before, since = _minutes(stable), _minutes(new)
    if len(before) < MIN_MINUTES:
        text = f"{len(before)} of {MIN_MINUTES} minutes with requests before the promotion"
        return Saving(len(before), len(since), rows, waiting=text)
    since = _alike(before, since)
    if len(since) < MIN_MINUTES:
        low, high = before[:, 0].min(), before[:, 0].max()
        load = f"at {low:,.0f} to {high:,.0f} rows a minute, as before it"
        text = f"{len(since)} of {MIN_MINUTES} minutes since the promotion {load}"
        return Saving(len(before), len(since), rows, waiting=text)
    return _compared(before, since, rows, np.random.default_rng(seed))


def _compared(before: Minutes, since: Minutes, rows: int, random: np.random.Generator) -> Saving:
    found = _log_ratio(_means(before)[None], _means(since)[None])[0]
    blocks = 3 if min(len(before), len(since)) < _FEW else 5
    drawn = _log_ratio(_drawn(before, blocks, random), _drawn(since, blocks, random))
    half = _STUDENT[blocks] * math.sqrt(blocks / (blocks - 1)) * float(drawn.std())
    mean_rows, mean_s = since.mean(axis=0)
    new_s = float(mean_s / mean_rows)
    stable_s = new_s / math.exp(found)
    share = Estimate(*(1 - math.exp(found + off) for off in (0.0, half, -half)))
    saved = Estimate(*(rows * stable_s * part for part in (share.value, share.low, share.high)))
    return Saving(len(before), len(since), rows, share, saved, 1000 * stable_s, 1000 * new_s)


def _minutes(uses: Sequence[MinuteUse]) -> Minutes:
    """Return rows and seconds of the minutes with requests: those without say nothing of a row's time."""
    kept = [(use.rows, use.cpu_seconds) for use in uses if use.rows > 0 and use.cpu_seconds > 0]
    return np.array(kept, np.float64).reshape(-1, 2)


def _alike(before: Minutes, since: Minutes) -> Minutes:
    """Return the minutes at a load at which the version before has been, too."""
    if not len(since):
        return since
    low, high = before[:, 0].min() / _SLACK, before[:, 0].max() * _SLACK
    return since[(since[:, 0] >= low) & (since[:, 0] <= high)]


def _means(minutes: Minutes) -> Minutes:
    """Return the means of rows, seconds, squares of rows, and products of both."""
    rows, seconds = minutes[:, 0], minutes[:, 1]
    return np.array([rows.mean(), seconds.mean(), (rows * rows).mean(), (rows * seconds).mean()])


def _drawn(minutes: Minutes, blocks: int, random: np.random.Generator) -> Minutes:
    """Return the means of draws of blocks; the last minute is followed by the first one. [draws, 4]."""
    number = len(minutes)
    length = max(number // blocks, 1)
    count = -(-number // length)
    rows, seconds = np.concatenate([minutes, minutes]).T
    sums = np.cumsum(np.stack([rows, seconds, rows * rows, rows * seconds]), axis=1)
    sums = np.concatenate([np.zeros((4, 1)), sums], axis=1)
    first = random.integers(0, number, (_DRAWS, count))
    return (sums[:, first + length] - sums[:, first]).sum(axis=2).T / (count * length)


def _log_ratio(before: Minutes, since: Minutes) -> Minutes:
    """Return the logarithm of the new version's time by what the fitted line says, for each row of means."""
    x, y, xx, xy = before.T
    variance = xx - x * x
    flat = variance <= _FLAT * x * x
    slope = np.where(flat, 0.0, (xy - x * y) / np.where(flat, 1.0, variance))
    expected = y + slope * (since[:, 0] - x)
    # A draw may have a line that is nowhere near the minutes: it then says "much more", and never nothing.
    return np.log(since[:, 1] / np.maximum(expected, 1e-3 * y))
