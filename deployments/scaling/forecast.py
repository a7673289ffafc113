"""Forecasts what a model will need from the same hours of earlier days: a pure function of needs and times.

A need is the mean number of replicas' worth of places in use in a slot of five minutes. The forecast is the
level of the last half hour times the median of what followed it on the five most similar days: an outlier, a
missing day or a pattern that ends move a median little. `Forecaster` adds when it is to be believed.
"""

import math
from collections import deque
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

SLOT_S: Final = 300.0
DAY: Final = 288
"""Slots."""
DAYS: Final = 14
_LEVEL: Final = 6
_SHAPE: Final = 36
"""Slots by which days are compared: three hours."""
_SIMILAR: Final = 5
_LEAST: Final = 0.01
"""A level of replicas below which none is told from none."""
_SCORED: Final = 3 * DAY
_FEWEST_SCORED: Final = DAY // 4
_UNUSED: Final = 0.3
_DISTRUST: Final = 7 * DAY

Needs = npt.NDArray[np.float32]


def seasonal_median(needs: Needs, ahead: int) -> Needs | None:
    """Return the needs that are expected in the next slots.

    Args:
        needs: those of the last slots, the newest last; NaN where none is known. At most `DAYS` days count.
        ahead: the number of slots to look at, from the next one on.

    Returns:
        A need for each; None while there is no earlier day to go by, or the last half hour is not known.
    """
    end = len(needs)
    level = _mean(needs[max(end - _LEVEL, 0) :])
    if level is None:
        return None
    shape = needs[max(end - _SHAPE, 0) :] / max(level, _LEAST)
    found: list[tuple[float, int]] = []
    ratios: dict[int, Needs] = {}
    for day in range(1, DAYS + 1):
        then = end - day * DAY
        if then < _SHAPE:
            break
        before = _mean(needs[then - _LEVEL : then])
        following = needs[then : then + ahead]
        if before is None or np.isnan(following).any():
            continue
        before = max(before, _LEAST)
        distance = _mean(np.abs(needs[then - len(shape) : then] / before - shape))
        found.append((math.inf if distance is None else distance, day))
        ratios[day] = following / before
    if not found:
        return None
    similar = [ratios[day] for _, day in sorted(found)[:_SIMILAR]]
    return np.asarray(level * np.median(similar, axis=0), np.float32)


def _mean(values: npt.NDArray[np.float32]) -> float | None:
    """Return the mean of the known values; None where fewer than half are."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size and 2 * known.size >= values.size else None


class History(msgspec.Struct, frozen=True):
    """The needs of a model as they are kept.

    Attributes:
        name: the model's identifier.
        changed_at: Unix seconds.
        last: the number of the newest slot, since the epoch.
        needs: float32 of that slot and the ones before it, the newest last.
        distrusted: by time of the day, in slots, the slot until which its forecasts are not acted on.
    """

    name: str
    changed_at: float
    last: int
    needs: bytes
    distrusted: dict[int, int] = {}


class Score(NamedTuple):
    """Mean absolute errors of three days, as shares of the mean need: of forecasts, and of the last value."""

    forecast: float
    last_value: float

    @property
    def trusted(self) -> bool:
        """Whether the forecast was better than to expect that nothing changes."""
        return self.forecast < self.last_value


class Expectation(NamedTuple):
    """The expected need of a model.

    Attributes:
        need: the largest of the slots ahead, in replicas' worth of places; None where nothing is known.
        why_not: why that is not to be acted on; "" if it is.
        score: of the last three days; None before there is one.
    """

    need: float | None = None
    why_not: str = "there is less than a day of it"
    score: Score | None = None


class Forecaster:
    """Knows the needs of one model, and whether forecasts of them are to be believed.

    Args:
        history: what is known already.

    Attributes:
        expectation: what is expected since the last slot ended.
    """

    def __init__(self, history: History | None = None) -> None:
        self._last = -1 if history is None else history.last
        stored = np.zeros(0, np.float32) if history is None else np.frombuffer(history.needs, np.float32)
        self._needs: Needs = stored[-DAYS * DAY - _SHAPE :].copy()
        self._distrusted = {} if history is None else dict(history.distrusted)
        self._sum, self._count, self._slot = 0.0, 0, -1
        self._awaited: dict[int, tuple[float, float]] = {}
        """By slot: what was forecast for it, and the need of when it was."""
        self._errors: deque[tuple[float, float, float]] = deque(maxlen=_SCORED)
        self._asked: tuple[int, int, float] | None = None
        """The slot since which replicas are asked for, their number, and the largest need since."""
        self.expectation = Expectation()

    def observe(self, need: float, now: float, ahead: int) -> bool:
        """Take a sample of the need.

        Args:
            need: replicas' worth of places in use and of requests that wait too long.
            now: Unix seconds.
            ahead: slots to look ahead.

        Returns:
            Whether a slot has ended, after which `expectation` is new.
        """
        slot = int(now // SLOT_S)
        ended = self._slot >= 0 and slot != self._slot
        if ended:
            self._end(self._slot, self._sum / self._count, ahead)
        if slot != self._slot:
            self._slot, self._sum, self._count = slot, 0.0, 0
        self._sum += need
        self._count += 1
        if self._asked is not None:
            since, replicas, largest = self._asked
            self._asked = since, replicas, max(largest, need)
        return ended

    def asks(self, replicas: int) -> None:
        """Note that so many replicas were asked for by the expectation; 0 for none."""
        if not replicas:
            self._asked = None
        elif self._asked is None or self._asked[1] != replicas:
            self._asked = self._slot, replicas, 0.0

    def history(self, name: str, now: float) -> History:
        """Return what is to be kept."""
        return History(name, now, self._last, self._needs.tobytes(), self._distrusted)

    def _end(self, slot: int, need: float, ahead: int) -> None:
        self._append(slot, need)
        forecast = self._awaited.pop(slot, None)
        if forecast is not None:
            self._errors.append((abs(forecast[0] - need), abs(forecast[1] - need), need))
        self._awaited = {each: value for each, value in self._awaited.items() if each > slot}
        self._judge_use(slot, ahead)
        found = seasonal_median(self._needs, ahead)
        if found is not None:
            self._awaited[slot + 1] = float(found[0]), need
        expected = None if found is None else float(found.max())
        score = self._score()
        self.expectation = Expectation(expected, self._why_not(slot, expected, score, ahead), score)

    def _append(self, slot: int, need: float) -> None:
        missing = slot - self._last - 1 if self._last >= 0 else 0
        if missing < 0 or missing > DAYS * DAY:  # a clock that was set, or a server that was away for weeks
            self._needs, missing = np.zeros(0, np.float32), 0
        gap = np.full(missing, np.nan, np.float32)
        joined = np.concatenate([self._needs, gap, np.array([need], np.float32)])
        self._needs = joined[-DAYS * DAY - _SHAPE :]
        self._last = slot

    def _judge_use(self, slot: int, ahead: int) -> None:
        """Distrust a time of the day at which replicas were asked for that nothing used."""
        if self._asked is None:
            return
        since, replicas, largest = self._asked
        if slot - since >= 2 * ahead and largest < _UNUSED * replicas:
            for each in range(since, slot + 1):
                self._distrusted[each % DAY] = slot + _DISTRUST
            self._asked = None

    def _score(self) -> Score | None:
        needed = sum(need for *_, need in self._errors)
        if len(self._errors) < _FEWEST_SCORED or needed <= 0:
            return None
        return Score(*(sum(errors[of] for errors in self._errors) / needed for of in (0, 1)))

    def _why_not(self, slot: int, expected: float | None, score: Score | None, ahead: int) -> str:
        if expected is None:
            return Expectation().why_not
        if score is None:
            return "it has no score yet"
        if not score.trusted:
            errors = f"{score.forecast:.1%}, is not below that of the last value, {score.last_value:.1%}"
            return f"its error, {errors}"
        times = (each % DAY for each in range(slot + 1, slot + 1 + ahead))
        if any(self._distrusted.get(each, -1) > slot for each in times):
            return "replicas that it asked for at this time of the day were not used"
        return ""


def wanted(expectation: Expectation, target_load: float) -> int:
    """Return the replicas that an expectation asks for; 0 where it is not to be acted on."""
    if expectation.need is None or expectation.why_not:
        return 0
    return math.ceil(expectation.need / target_load)
