"""The figures of the last hour, in rings: each second of five minutes, and each ten seconds of an hour."""

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from app.console.figures import FIELDS

MAX_BYTES: Final = 64 << 20
"""Of all rings: 3,000 versions; those beyond have no history."""
_FEW: Final = 16


class Ring(NamedTuple):
    """The slots of one resolution."""

    step_s: int
    slots: int


FINE: Final = Ring(1, 300)
COARSE: Final = Ring(10, 360)
_BYTES: Final = (FINE.slots + COARSE.slots) * len(FIELDS) * 4


class History:
    """The figures of all versions over time. Times are Unix seconds.

    Args:
        max_bytes: bound of its arrays.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._most = max(1, max_bytes // _BYTES)
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        self._rings = {ring: _empty(0, ring) for ring in (FINE, COARSE)}
        self._last = dict.fromkeys(self._rings, -1)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(ring.nbytes for ring in self._rings.values())

    def write(self, at: float, values: dict[str, list[float]]) -> None:
        """Keep the figures of versions, by id, of one moment; versions that are not there have none."""
        places, rows = [], []
        for key, row in values.items():
            place = self._place(key)
            if place is not None:
                places.append(place)
                rows.append(row)
        if not rows:
            return
        now = np.array(rows, np.float32)
        for ring, array in self._rings.items():
            slot = int(at // ring.step_s)
            self._clear(ring, slot)
            array[places, slot % ring.slots] = now if ring is FINE else self._mean(places, at, now)

    def _mean(self, places: list[int], at: float, now: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the means of the seconds so far of a coarse slot."""
        seconds = int(at) - int(at // COARSE.step_s) * COARSE.step_s + 1
        slots = [(int(at) - back) % FINE.slots for back in range(seconds)]
        found = self._rings[FINE][np.ix_(places, slots)]
        known = ~np.isnan(found)
        sums = np.where(known, found, 0).sum(axis=1)
        counts = known.sum(axis=1)
        return np.where(counts > 0, sums / np.maximum(counts, 1), now).astype(np.float32)

    def read(self, key: str, span_s: int, now: float) -> dict[str, Any]:
        """Return the figures of a version over the last seconds, oldest first, None where there are none."""
        ring = FINE if span_s <= FINE.step_s * FINE.slots else COARSE
        count = max(1, min(ring.slots, span_s // ring.step_s))
        last = int(now // ring.step_s)
        found: dict[str, Any] = {"step_s": ring.step_s, "ends_at": last * ring.step_s}
        place = self._places.get(key)
        if place is None:
            return found | {field: [None] * count for field in FIELDS}
        self._clear(ring, last)
        slots = [slot % ring.slots for slot in range(last - count + 1, last + 1)]
        columns = self._rings[ring][place, slots].T.tolist()
        return found | {
            field: [None if math.isnan(value) else round(value, 3) for value in column]
            for field, column in zip(FIELDS, columns, strict=True)
        }

    def keep(self, keys: set[str]) -> None:
        """Forget the versions that are gone."""
        for key in self._places.keys() - keys:
            place = self._places.pop(key)
            for array in self._rings.values():
                array[place] = np.nan
            self._free.append(place)

    def _place(self, key: str) -> int | None:
        place = self._places.get(key)
        if place is None and len(self._places) < self._most:
            place = self._places[key] = self._free.pop() if self._free else len(self._places)
            self._grow(place)
        return place

    def _grow(self, place: int) -> None:
        have = len(self._rings[FINE])
        if place < have:
            return
        more = min(self._most, max(_FEW, 2 * have)) - have
        self._rings = {ring: np.concatenate([old, _empty(more, ring)]) for ring, old in self._rings.items()}

    def _clear(self, ring: Ring, slot: int) -> None:
        """Empty the slots between the last one and this."""
        last, self._last[ring] = self._last[ring], max(slot, self._last[ring])
        for passed in range(max(last + 1, slot - ring.slots + 1), slot + 1):
            self._rings[ring][:, passed % ring.slots] = np.nan


def _empty(rows: int, ring: Ring) -> npt.NDArray[np.float32]:
    return np.full((rows, ring.slots, len(FIELDS)), np.nan, np.float32)
