"""What this machine does besides: figures of a busy machine are of what others leave of it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.5
_BUSY: Final = 0.15
"""The share of all processors from which others count."""
_STAT: Final = Path("/proc/stat")


def used_by_others() -> float:
    """Return how many processors are in use, for half a second in which nothing is sent."""
    before, start = _used_s(), time.monotonic()
    time.sleep(_LOOK_S)
    return (_used_s() - before) / (time.monotonic() - start)


def busy_because(used: float) -> str:
    """Return why figures are those of a busy machine; "" if they are not."""
    cores = os.cpu_count() or 1
    if used < _BUSY * cores:
        return ""
    return (
        f"this machine is busy: {used:.1f} of its {cores} processors were in use while nothing was sent, "
        "and the figures are of what was left"
    )


def _used_s() -> float:
    """Return the seconds that all processors have worked since the start of the machine."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, _STAT.read_text().split(maxsplit=11)[1:11])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
