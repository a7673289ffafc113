"""What a target is, and the bounds of what it may cost."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIMIT = 1 << 16
SECONDS = 0.1
"""Processor time for an input of at most `LIMIT` bytes."""
MEMORY = 64 << 20
"""Bytes by which an input may make the process grow, even for a moment."""
TRACING = 10
"""How many times slower a process is in which every allocation is traced."""


@dataclass(frozen=True)
class Target:
    """What reads bytes.

    Attributes:
        run: raises nothing but `errors`, whatever its input.
        errors: of inputs that are refused.
        seeds: inputs to start from.
        times: how often `run` reads its input, or how many times more it may take for another reason.
    """

    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    times: int = 1

    def check(self, data: bytes) -> None:
        """Fail for an input that raises something else, or costs more than `SECONDS` or `MEMORY`.

        What is over is run once more: it may have been somebody else's, such as a collection of garbage.
        """
        first = self._cost(data)
        if first.over and len(data) <= LIMIT:
            second = self._cost(data)
            assert not second.over, f"{first.text}, {second.text}"

    def _cost(self, data: bytes) -> "_Cost":
        cost = _Cost(self.times)
        try:
            self.run(data)
        except self.errors:
            pass
        cost.end()
        return cost


def cut(data: bytes) -> tuple[int, bytes]:
    """Two bytes that choose a length, and the rest."""
    return int.from_bytes(data[:2], "little"), data[2:]


class _Cost:
    """What is used until `end`."""

    def __init__(self, times: int) -> None:
        self.over, self.text = False, ""
        self._seconds = SECONDS * times * (TRACING if tracemalloc.is_tracing() else 1)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
        self._size = _peak()
        self._began = time.process_time()

    def end(self) -> None:
        spent, grown = time.process_time() - self._began, _peak() - self._size
        self.over = spent > self._seconds or grown > MEMORY
        self.text = f"{spent:.3f} s and {grown >> 20} MiB"


def _peak() -> int:
    """Return the largest size in memory so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
