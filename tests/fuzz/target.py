"""What a target is, and the bounds that it may check itself by."""

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
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
    """`run` raises nothing but `errors`, whatever its input."""

    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


def cut(data: bytes) -> tuple[int, bytes]:
    """Two bytes that choose a length, and the rest."""
    return int.from_bytes(data[:2], "little"), data[2:]


def bounded(run: Callable[[bytes], object], times: int = 1) -> Callable[[bytes], object]:
    """Return a function that also fails for an input that costs more than `SECONDS` or `MEMORY`.

    What is over is run once more: it may have been somebody else's, such as a collection of garbage.

    Args:
        run: of a target.
        times: how often it reads its input.
    """

    def checked(data: bytes) -> object:
        if len(data) > LIMIT:
            return None
        first = _Cost(times)
        try:
            return run(data)
        finally:
            if first.over():
                second = _Cost(times)
                with suppress(Exception):
                    run(data)
                assert not second.over(), f"{first.text}, {second.text}"

    return checked


class _Cost:
    def __init__(self, times: int = 1) -> None:
        self._seconds = SECONDS * times * (TRACING if tracemalloc.is_tracing() else 1)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
        self._size = _peak()
        self._began = time.process_time()
        self.text = ""

    def over(self) -> bool:
        """Return whether more was used since the beginning than may be."""
        spent, grown = time.process_time() - self._began, _peak() - self._size
        self.text = f"{spent:.3f} s and {grown >> 20} MiB"
        return spent > self._seconds or grown > MEMORY


def _peak() -> int:
    """Return the largest size in memory so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10
