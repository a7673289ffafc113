"""Asking a Python model's own `is_ready`, with Triton's limit of five seconds."""

import asyncio
import logging
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from backends.python.api.event_loop import EventLoop

logger = logging.getLogger(__name__)

LIMIT_S: Final = 5.0


class Readiness:
    """Calls `is_ready` in a thread beside the instance's, at most one call at a time.

    A call that has not returned in time counts as "not ready", and so does every question until it returns.
    """

    def __init__(self, model: Any, loop: EventLoop, name: str, limit_s: float = LIMIT_S) -> None:
        self._is_ready = getattr(model, "is_ready", None)
        self._loop = loop
        self._name = name
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: Future[bool] | None = None

    def __call__(self) -> bool:
        """Whether the model says it is ready; True for a model without `is_ready`."""
        if self._is_ready is None:
            return True
        with self._lock:
            if self._running is not None and not self._running.done():
                return False
            running: Future[bool] = Future()
            self._running = running
        threading.Thread(
            target=self._ask, args=(running,), name=f"{self._name} is_ready", daemon=True
        ).start()
        try:
            return running.result(self._limit_s)
        except (TimeoutError, FutureTimeout):  # before Python 3.11 they are two
            logger.warning("is_ready of instance '%s' did not return in %g s", self._name, self._limit_s)
        except Exception:
            logger.exception("is_ready of instance '%s' failed", self._name)
        return False

    def _ask(self, running: "Future[bool]") -> None:
        assert self._is_ready is not None
        try:
            answer = self._is_ready()
            if asyncio.iscoroutine(answer):
                answer = self._loop.run(answer, self._limit_s)
            if not isinstance(answer, bool):
                raise TypeError(f"is_ready must return a bool, found type '{type(answer)}'")
            running.set_result(answer)
        except BaseException as error:
            running.set_exception(error)
