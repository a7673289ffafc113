"""Clients of a long test: threads that send requests while a block runs."""

import threading
from collections.abc import Callable, Iterable
from typing import Self


class ClientThreads:
    """Runs loops, each in a thread of its own, from the begin of a `with` block to its end.

    Args:
        loops: what the threads run; each returns soon after `stop` is set.
        patience_s: how long each may take for that.
    """

    def __init__(self, loops: Iterable[Callable[[], None]], patience_s: float) -> None:
        self.stop = threading.Event()
        self._patience_s = patience_s
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in loops]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(self._patience_s)

    @property
    def hanging(self) -> int:
        """How many have not ended."""
        return sum(thread.is_alive() for thread in self._threads)
