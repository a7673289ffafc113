"""An event loop on a thread of its own, for models whose functions are coroutines."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any


class EventLoop:
    """The loop of an instance, started at the first coroutine.

    It also runs between executions, for tasks that a model left running.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Return the coroutine's result; block until then.

        Raises:
            TimeoutError: it took longer than `timeout` seconds, and was cancelled.
        """
        future = self._submit(coroutine)
        try:
            return future.result(timeout)
        except FutureTimeout as error:  # not the built-in class before Python 3.11
            future.cancel()
            raise TimeoutError(f"no result within {timeout} s") from error

    def start(self, coroutine: Coroutine[Any, Any, Any], done: Callable[["Future[Any]"], None]) -> None:
        """Run the coroutine in the background; call `done` on the loop's thread when it has ended."""
        self._submit(coroutine).add_done_callback(done)

    def close(self) -> None:
        """Cancel the remaining tasks and stop the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(_cancel_all, loop)

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
                thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    # The cancelled tasks run before a callback that is scheduled now.
    loop.call_soon(loop.stop)
