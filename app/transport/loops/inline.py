"""Event loop driven by callbacks of another one, for coroutines of a model on the replica's loop.

Needs `asyncio.events._set_running_loop`, without which no second loop can run in a thread whose loop is
running. Its test says what breaks on a Python that lacks it.
"""

import asyncio
import logging
import threading
import time
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

from app.transport.loops.suspension import ResponseFuture, wait_time
from app.transport.loops.watchdog import LoopWatchdog

logger = logging.getLogger(__name__)


class InlineEventLoop:
    """Runs callbacks as soon as the host loop delivers them, and measures their time.

    Has the methods of an event loop that tasks, futures and `gather` need. A coroutine resumes within the
    callback that has its response: no other thread, nor the host's queue, is in between.
    """

    def __init__(self, host: asyncio.AbstractEventLoop, watchdog: LoopWatchdog) -> None:
        """Must be called on the host's loop; `watchdog` is that of the host's replica."""
        self._host = host
        self._watchdog = watchdog
        self._as_loop: Any = self
        self._thread = threading.get_ident()
        self._ready: deque[tuple[Context, Callable[..., object], tuple[Any, ...]]] = deque()
        self._working = False
        self._worked_ns = 0
        self._awaited: tuple[asyncio.Task[Any], ResponseFuture[None]] | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return the coroutine's result; the calling execution, one at a time, is suspended until then."""
        task = self.create_task(coroutine)
        if not task.done():
            ended: ResponseFuture[None] = ResponseFuture()
            self._awaited = task, ended
            self._worked_ns = 0
            ended.wait()
            wait_time.ns -= self._worked_ns
        return task.result()

    def create_task(
        self, coro: Any, *, name: Any = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self._as_loop, name=name, context=context)
        self._work()
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._as_loop)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> None:
        """Queue a callback; unlike that of other loops it cannot be cancelled."""
        self._ready.append((context or copy_context(), callback, args))

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> None:
        """Queue a callback; on the host's loop, it runs before this returns."""
        self._ready.append((context or copy_context(), callback, args))
        if threading.get_ident() == self._thread:
            self._work()
        else:
            self._host.call_soon_threadsafe(self._work)

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        logger.error("%s", context.get("message"), exc_info=context.get("exception"))

    def _work(self) -> None:
        """Run the queued callbacks and those they queue; then resume the execution if its coroutine ended."""
        if self._working:
            return
        began = time.monotonic_ns()
        outer = self._watchdog.enter()
        host = events._get_running_loop()
        events._set_running_loop(self._as_loop)
        self._working = True
        ready = self._ready
        try:
            while ready:
                context, callback, args = ready.popleft()
                self._run(context, callback, args)
        finally:
            self._working = False
            events._set_running_loop(host)
            self._watchdog.leave(outer)
            self._worked_ns += time.monotonic_ns() - began
        if self._awaited is not None and self._awaited[0].done():
            (_, ended), self._awaited = self._awaited, None
            ended.set(None)

    def _run(self, context: Context, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            context.run(callback, *args)
        except (SystemExit, KeyboardInterrupt):  # the task keeps it: `task.result()` raises it again
            pass
        except Exception:
            logger.exception("in a callback of the model's event loop")
