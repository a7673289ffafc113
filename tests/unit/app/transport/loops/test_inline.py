"""The inline event loop, and the private asyncio API that it depends on."""

import asyncio
import time
from asyncio import events

from app.transport.loops.inline import InlineEventLoop
from app.transport.loops.suspension import run_suspendable, wait_time
from app.transport.loops.watchdog import LoopWatchdog


async def test_private_asyncio_api_replaces_the_running_loop() -> None:
    """On a Python where this fails, InlineEventLoop needs another way to become the running loop of a thread.

    Until then `--backend-config=python,event-loop=false` serves async Python models on their own threads.
    """
    host = asyncio.get_running_loop()
    other = InlineEventLoop(host, LoopWatchdog("m"))
    assert events._get_running_loop() is host
    events._set_running_loop(other)  # type: ignore[arg-type]
    try:
        assert asyncio.get_running_loop() is other  # type: ignore[comparison-overlap]
    finally:
        events._set_running_loop(host)
    await asyncio.sleep(0)


async def test_tasks_accept_a_loop_that_is_no_abstract_event_loop() -> None:
    """`asyncio.Task` and `asyncio.Future` use only the methods that InlineEventLoop has."""

    async def both() -> list[int]:
        async def one(number: int) -> int:
            await asyncio.sleep(0)
            return number

        return list(await asyncio.gather(one(1), one(2)))

    assert InlineEventLoop(asyncio.get_running_loop(), LoopWatchdog("m")).run(both()) == [1, 2]


async def test_computing_of_a_coroutine_does_not_count_as_waiting() -> None:
    loop = InlineEventLoop(asyncio.get_running_loop(), LoopWatchdog("m"))
    awaited: list[asyncio.Future[None]] = []
    ended: list[int] = []

    async def compute() -> int:
        awaited.append(asyncio.get_running_loop().create_future())
        await awaited[0]
        end = time.monotonic_ns() + 20_000_000
        while time.monotonic_ns() < end:
            pass
        return 7

    before, began = wait_time.ns, time.monotonic_ns()
    run_suspendable(LoopWatchdog("m"), lambda: ended.append(loop.run(compute())))
    assert not ended and asyncio.get_running_loop() is not awaited[0].get_loop()
    loop.call_soon_threadsafe(awaited[0].set_result, None)
    assert ended == [7]
    assert time.monotonic_ns() - began - (wait_time.ns - before) >= 20_000_000
