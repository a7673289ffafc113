"""A thread that calls functions at given times, for backends that respond later."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

Action = Callable[[], None]


class Timeline:
    """Calls actions in the order of their times, those of equal time in the order of `at`.

    One thread serves all requests of a model.
    """

    def __init__(self, name: str) -> None:
        self._due: list[tuple[float, int, Action]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def at(self, when: float, action: Action) -> None:
        """Call `action` when `time.monotonic()` has reached `when`; from any thread."""
        with self._changed:
            heapq.heappush(self._due, (when, next(self._order), action))
            self._changed.notify()

    def close(self) -> None:
        """Call all remaining actions now, in their order, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception:
                logger.exception("an action of %s failed", self._thread.name)

    def _next(self) -> Action | None:
        with self._changed:
            while True:
                if not self._due:
                    if self._closed:
                        return None
                    self._changed.wait()
                    continue
                remaining = self._due[0][0] - time.monotonic()
                if remaining <= 0 or self._closed:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(remaining)
