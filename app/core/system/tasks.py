"""Tasks in the background of an object, and work that an event loop leaves to a thread."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
_HEAVY: Final = 64 << 10


async def by_size(size: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """Return what work on so many bytes returns; it is done in a thread where they are many."""
    return await asyncio.to_thread(work, *arguments) if size > _HEAVY else work(*arguments)


class InTurn:
    """Does long work one after the other, in a thread, and pauses for as long before the next.

    For work that holds the interpreter, as reading JSON does: an event loop waits for it with every step, and
    for several threads of it several times.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._pauses_until = 0.0

    async def by_size(self, size: int, work: Callable[..., Result], *arguments: Any) -> Result:
        """Return what work on so many bytes returns; see the function."""
        if size <= _HEAVY:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work, *arguments)

    def _do(self, work: Callable[..., Result], *arguments: Any) -> Result:
        time.sleep(max(self._pauses_until - time.monotonic(), 0.0))
        began = time.thread_time()
        try:
            return work(*arguments)
        finally:
            self._pauses_until = time.monotonic() + time.thread_time() - began


class Tasks(set[asyncio.Task[Any]]):
    """Tasks until they end: an event loop refers to its tasks weakly, and may lose one that nobody keeps."""

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task and keep it."""
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def cancel(self) -> None:
        """Cancel all, and wait until they have ended."""
        for task in self:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)
