"""Tasks in the background of an object, and work that an event loop leaves to a thread."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
_HEAVY: Final = 64 << 10


async def by_size(size: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """Return what work on so many bytes returns; it is done in a thread where they are many."""
    return await asyncio.to_thread(work, *arguments) if size > _HEAVY else work(*arguments)


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
