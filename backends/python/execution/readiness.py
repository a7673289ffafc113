"""Calls of a Python model's own `is_ready`, with Triton's timeout of five seconds."""

import asyncio
import logging
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from backends.python.api.event_loop import EventLoop
from backends.python.execution.failures import log_failure

logger = logging.getLogger(__name__)

LIMIT_S: Final = 5.0


class Readiness:
    """Calls `is_ready` on a thread of its own; callers during a call share its result."""

    def __init__(self, model: Any, loop: EventLoop, name: str) -> None:
        self._is_ready = getattr(model, "is_ready", None)
        self._loop = loop
        self._name = name
        self._lock = threading.Lock()
        self._running: Future[bool] | None = None

    def __call__(self) -> bool:
        """Return the result of `is_ready`; True for a model without it."""
        if self._is_ready is None:
            return True
        try:
            return self._started().result(LIMIT_S)
        except (TimeoutError, FutureTimeout):  # two classes before Python 3.11
            logger.warning("is_ready of instance '%s' did not return in %g s", self._name, LIMIT_S)
        except (Exception, SystemExit) as error:
            log_failure("is_ready", self._name, error)
        return False

    def _started(self) -> "Future[bool]":
        """Return the call in flight, or start one."""
        with self._lock:
            running = self._running
            if running is None or running.done():
                running = self._running = Future()
                name = f"{self._name} is_ready"
                threading.Thread(target=self._call, args=(running,), name=name, daemon=True).start()
            return running

    def _call(self, running: "Future[bool]") -> None:
        assert self._is_ready is not None
        try:
            ready = self._is_ready()
            if asyncio.iscoroutine(ready):
                ready = self._loop.run(ready, LIMIT_S)
            if not isinstance(ready, bool):
                raise TypeError(f"is_ready must return a bool, found type '{type(ready)}'")
            running.set_result(ready)
        except BaseException as error:
            running.set_exception(error)
