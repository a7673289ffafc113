"""Execution of ready batches through `@serve.batch`.

Batches are formed by the dynamic batcher, not by Serve. `@serve.batch` alone forms them while the instance
is busy, so they stay small under load; it does not look at shapes, and moves an item that does not fit to
the back of its queue. A formed batch passes through it as one item whose size is its rows, for one purpose:
Serve's own batch metrics are then true.

It costs a batch 100 us, as much as the whole execution of a small model. So lone requests, and batches whose
execution takes less than `MIN_EXECUTION_NS`, skip it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from app.core.system.tasks import Tasks
from deployments.execution.instance_thread import Batch, InstanceThread

logger = logging.getLogger(__name__)

MIN_EXECUTION_NS: Final = 2_000_000
"""At least this long, an execution takes 20 times what `@serve.batch` costs."""
_MAX_BATCHES: Final = 1024
"""Limit of concurrent batches; the scheduler gives no instance two, and instances come and go."""

Item = tuple[InstanceThread, Batch]
Execute = Callable[[list[Item]], Awaitable[list[None]]]
ServeBatched = Callable[[Item], Awaitable[None]]
MakeBatched = Callable[[Execute, int, int], ServeBatched]
"""Decorates an executor, for at most so many rows and so many batches at a time."""


def serve_batched(execute: Execute, max_rows: int, concurrent: int) -> ServeBatched:
    """Decorate an executor with `@serve.batch`, which works inside a replica only."""
    from ray import serve  # not where models run without a cluster

    decorated: Any = serve.batch(
        max_batch_size=max_rows,
        batch_wait_timeout_s=0,
        max_concurrent_batches=concurrent,
        batch_size_fn=lambda items: sum(batch.rows for _, batch in items),
    )(cast(Any, execute))
    return cast(ServeBatched, decorated)


def without_serve(execute: Execute, max_rows: int, concurrent: int) -> ServeBatched:
    """Return a form of an executor that passes each batch on, for a process that is no replica."""

    async def execute_one(item: Item) -> None:
        await execute([item])

    return execute_one


class ServeBatch:
    """Executes batches of at most `max_rows` rows through `@serve.batch`."""

    def __init__(self, max_rows: int, make: MakeBatched = serve_batched) -> None:
        self._batched = make(execute, max_rows, _MAX_BATCHES)
        self._running = Tasks()

    def start(self, instance: InstanceThread, batch: Batch) -> None:
        """Execute a batch on an instance, without waiting for it."""
        self._running.start(self._execute(instance, batch))

    async def _execute(self, instance: InstanceThread, batch: Batch) -> None:
        try:
            await self._batched((instance, batch))
        except Exception:
            logger.exception("@serve.batch failed")
            if batch.done is None:  # the instance did not receive it: no reason to lose its requests
                instance.execute(batch)
        else:
            batch.requests = []  # Serve keeps the item until the next one comes


async def execute(items: list[Item]) -> list[None]:
    """Hand batches to their instances and wait until they are done; `@serve.batch` decorates this."""
    waiting = []
    for instance, batch in items:
        batch.done = asyncio.get_running_loop().create_future()
        waiting.append(batch.done)
        instance.execute(batch)
    await asyncio.gather(*waiting)
    return [None] * len(items)
