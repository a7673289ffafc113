"""What each version consumed, minute by minute, over the last hours: by which two versions are compared."""

from collections import deque
from typing import Final, NamedTuple

MINUTES: Final = 360
"""Minutes that are kept of a version: six hours."""
MAX_VERSIONS: Final = 1000
"""Versions that are kept; those that were silent for longest go first."""
MINUTE_S: Final = 60


class MinuteUse(NamedTuple):
    """One minute of a version.

    Attributes:
        minute: since the epoch, in minutes.
        cpu_seconds: consumed by its replicas on all nodes, whether for requests or not.
        rows: of the requests that it has answered.
    """

    minute: int
    cpu_seconds: float
    rows: int


def minute_of(at: float) -> int:
    """Return the minute of a moment (Unix seconds)."""
    return int(at // MINUTE_S)


class Minutes:
    """The minutes of all versions, bounded.

    Args:
        minutes: that are kept of each.
        versions: that are kept.
    """

    def __init__(self, minutes: int = MINUTES, versions: int = MAX_VERSIONS) -> None:
        self._minutes, self._versions = minutes, versions
        self._kept: dict[tuple[str, str], deque[MinuteUse]] = {}

    def add(self, model: str, version: str, use: MinuteUse) -> None:
        """Add to a minute, which is the last one of its version or a later one; older ones are left out."""
        key = model, version
        kept = self._kept.pop(key, None) or deque[MinuteUse](maxlen=self._minutes)
        self._kept[key] = kept  # behind all others
        if len(self._kept) > self._versions:
            del self._kept[next(iter(self._kept))]
        last = kept[-1] if kept else None
        if last is None or use.minute > last.minute:
            kept.append(use)
        elif use.minute == last.minute:
            kept[-1] = MinuteUse(use.minute, last.cpu_seconds + use.cpu_seconds, last.rows + use.rows)

    def of(self, model: str, version: str, since: int = 0, until: int | None = None) -> list[MinuteUse]:
        """Return the minutes of a version from `since` on and before `until`, the oldest first.

        The present minute is not over: leave it out by `until`.
        """
        kept = self._kept.get((model, version), ())
        return [use for use in kept if use.minute >= since and (until is None or use.minute < until)]
