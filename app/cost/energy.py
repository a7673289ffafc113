"""The energy of this machine's processors, where it tells (RAPL): to root since Linux 5.10, not to guests."""

import os
from pathlib import Path
from typing import Final

_POWER: Final = Path("/sys/class/powercap")
_BUSY: Final = (0, 1, 2, 5, 6)
"""Of the first line of /proc/stat: user, nice, system, irq, softirq."""
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Energy:
    """Says what a second of processor time has cost since the last look, as all that ran have shared it."""

    def __init__(self, power: Path = _POWER, stat: Path = Path("/proc/stat")) -> None:
        # Packages; what is below one (cores, memory controller) is in it already.
        self._packages = [path for path in sorted(power.glob("intel-rapl:*")) if path.name.count(":") == 1]
        self._stat = stat
        self._before = self._read()

    def joules_per_second(self) -> float | None:
        """Return joules for each second of processor time; None where the machine does not tell. Blocks."""
        before, self._before = self._before, self._read()
        if before is None or self._before is None:
            return None
        busy_s = self._before[1] - before[1]
        used = (self._used(*pair) for pair in zip(self._packages, before[0], self._before[0], strict=True))
        return sum(used) / busy_s if busy_s > 0 else None

    def _read(self) -> tuple[list[int], float] | None:
        try:
            joules = [int((path / "energy_uj").read_text()) for path in self._packages]
            ticks = self._stat.read_text().split("\n", 1)[0].split()[1:]
        except (OSError, ValueError):
            return None
        return (joules, sum(int(ticks[i]) for i in _BUSY) / _TICKS_A_SECOND) if joules else None

    @staticmethod
    def _used(path: Path, before: int, now: int) -> float:
        """Return joules; the counter begins anew at its greatest value."""
        try:
            most = int((path / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            most = 0
        return (now - before if now >= before else now - before + most) / 1e6
