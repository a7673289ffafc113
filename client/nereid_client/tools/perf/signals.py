"""Signals that end a run: a measurement that one meets ends in order, and what it has seen is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal ends the run."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class Signals:
    """Raises `Stopped` when a signal asks the process to end. Use it as a context manager.

    Attributes:
        number: of the signal that came; 0 for none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._held = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._came) for each in _ENDING}
        return self

    def __exit__(self, *exc: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raise nothing in a block, unless a second signal comes; the block looks at `number`."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def check(self) -> None:
        """Raise `Stopped` if a signal has come."""
        if self.number:
            raise Stopped(self.number)

    def _came(self, number: int, _: object) -> None:
        again, self.number = bool(self.number), number
        if again or not self._held:
            raise Stopped(number)
