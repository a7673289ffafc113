"""The arbiter's process and its clients: real processes and sockets, killed at the worst moment."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.core.config.rate_limit import ANY_DEVICE, GLOBAL, Demand, ResourceCounts
from app.core.errors import ErrorCode, InferError
from deployments.rate_limiting.client import Permits, RateLimiter
from tests.waiting import until

KEY = bytes(range(32))
ONE = Demand(((GLOBAL, "r", 1),))
LONG_S = 60.0
"""Machines of a CI are slow, and a test that hangs is a test that fails."""

HOLDER = """
import asyncio, sys
from app.core.config.rate_limit import GLOBAL, Demand
from deployments.rate_limiting.client import RateLimiter

async def main():
    limiter = RateLimiter(sys.argv[1], bytes(range(32)), {})
    permits = (await limiter.register({0: Demand(((GLOBAL, "r", 1),))}))[0]
    permits.acquire(lambda: print("held", flush=True))
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Replicas:
    """What replicas are to the arbiter of one directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.limiters: list[RateLimiter] = []

    async def join(self, demand: Demand = ONE, explicit: ResourceCounts | None = None) -> Permits:
        limiter = RateLimiter(self.directory, KEY, explicit or {})
        self.limiters.append(limiter)
        return (await limiter.register({0: demand}))[0]

    def arbiters(self) -> list[int]:
        """Processes that serve this directory."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"deployments.rate_limiting.process" in arguments and any(
                argument.startswith(self.directory.encode()) for argument in arguments
            ):
                found.append(int(process.name))
        return found


@pytest.fixture
async def replicas() -> AsyncIterator[Replicas]:
    directory = tempfile.mkdtemp(prefix="nereid-test-")
    made = Replicas(directory)
    try:
        async with asyncio.timeout(LONG_S):
            yield made
    finally:
        for limiter in made.limiters:
            await limiter.close()
        for arbiter in made.arbiters():
            os.kill(arbiter, signal.SIGKILL)
        shutil.rmtree(directory)


async def requested(permits: Permits) -> asyncio.Event:
    granted = asyncio.Event()
    permits.acquire(granted.set)
    return granted


async def all_answers_received(permits: Permits) -> None:
    """Wait until a replica has every answer of the arbiter: messages keep their order."""
    for _ in range(2):  # it answers the first before it grants permits for messages that came with it
        await permits._limiter.register({})


async def test_one_instance_executes_at_a_time(replicas: Replicas) -> None:
    one, other = await replicas.join(), await replicas.join()
    assert len(replicas.arbiters()) == 1
    await (await requested(one)).wait()
    waiting = await requested(other)
    await all_answers_received(other)
    assert not waiting.is_set()
    one.release()
    await waiting.wait()


async def test_many_replicas_at_once_start_one_arbiter(replicas: Replicas) -> None:
    permits = await asyncio.gather(*(replicas.join() for _ in range(4)))
    assert len(replicas.arbiters()) == 1
    running, most, had = 0, 0, 0

    async def execute(mine: Permits) -> None:
        nonlocal running, most, had
        for _ in range(25):
            await (await requested(mine)).wait()
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            had += 1
            mine.release()

    await asyncio.gather(*map(execute, permits))
    assert (most, had) == (1, 100)


async def test_priorities_apply_to_permits_requested_at_once(replicas: Replicas) -> None:
    had = {1: 0, 2: 0}

    async def join(priority: int) -> None:
        permits = await replicas.join(Demand(((GLOBAL, "r", 1),), priority))

        def begin() -> None:
            loop.call_soon(executed)

        def executed() -> None:
            had[priority] += 1
            permits.release()
            permits.acquire(begin)

        permits.acquire(begin)

    loop = asyncio.get_running_loop()
    gate = await replicas.join()
    await (await requested(gate)).wait()
    await join(1)
    await join(2)
    for limiter in replicas.limiters:
        await limiter.register({})
    gate.release()
    await until(lambda: sum(had.values()) >= 300)
    assert abs(had[1] - 2 * had[2]) <= 6, had


async def test_killed_holder_frees_its_permit(replicas: Replicas) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, replicas.directory, stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        assert await holder.stdout.readline() == b"held\n"
        mine = await replicas.join()
        waiting = await requested(mine)
        await all_answers_received(mine)
        assert not waiting.is_set()
    finally:
        holder.kill()
    await waiting.wait()
    await holder.wait()


async def test_killed_waiter_is_forgotten(replicas: Replicas) -> None:
    one, gone, other = await replicas.join(), await replicas.join(), await replicas.join()
    await (await requested(one)).wait()
    await requested(gone)
    waiting = await requested(other)
    await replicas.limiters[1].close()
    one.release()
    await waiting.wait()


async def test_withdrawn_request_gets_no_permit(replicas: Replicas) -> None:
    one, other = await replicas.join(), await replicas.join()
    await (await requested(one)).wait()
    withdrawn = await requested(other)
    other.release()
    one.release()
    await (await requested(one)).wait()
    assert not withdrawn.is_set()
    again = await requested(other)
    one.release()
    await again.wait()
    assert not withdrawn.is_set()


async def test_successor_of_a_killed_arbiter_knows_held_permits(replicas: Replicas) -> None:
    one, other = await replicas.join(), await replicas.join()
    await (await requested(one)).wait()
    waiting = await requested(other)
    await all_answers_received(other)
    (first,) = replicas.arbiters()
    os.kill(first, signal.SIGKILL)
    await until(lambda: replicas.arbiters() not in ([], [first]))
    third = await replicas.join()
    await all_answers_received(other)
    late = await requested(third)
    await all_answers_received(third)
    assert not waiting.is_set() and not late.is_set()
    one.release()
    await waiting.wait()
    assert not late.is_set()
    other.release()
    await late.wait()


async def test_unsatisfiable_demand_is_refused(replicas: Replicas) -> None:
    two = Demand(((GLOBAL, "r", 2),))
    with pytest.raises(InferError) as caught:
        await replicas.join(two, {ANY_DEVICE: {"r": 1}})
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert "limited to 1" in caught.value.message
    await (await requested(await replicas.join())).wait()


async def test_leaving_instance_frees_its_permit(replicas: Replicas) -> None:
    one, other = await replicas.join(), await replicas.join()
    await (await requested(one)).wait()
    waiting = await requested(other)
    one.unregister()
    await waiting.wait()
