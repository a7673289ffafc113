import asyncio
import gc

import pytest

from app.core.tasks import Tasks


async def test_a_task_that_nobody_else_keeps_ends() -> None:
    tasks, ended = Tasks(), asyncio.Event()

    async def work() -> None:
        await asyncio.get_running_loop().create_future()  # which only the task refers to

    async def other() -> None:
        await asyncio.sleep(0)
        ended.set()

    tasks.start(work())
    tasks.start(other())
    gc.collect()
    await ended.wait()
    await asyncio.sleep(0)
    assert len(tasks) == 1
    await tasks.cancel()
    assert not tasks


async def test_the_result_is_that_of_the_task() -> None:
    async def work(fails: bool) -> int:
        if fails:
            raise ValueError("no")
        return 3

    tasks = Tasks()
    assert await tasks.start(work(fails=False)) == 3
    with pytest.raises(ValueError, match="no"):
        await tasks.start(work(fails=True))
