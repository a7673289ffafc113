"""Calls that hang leave one thread behind, and none is begun behind them."""

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from app.core.system.lone_thread import LoneThread
from tests.waiting import until

SOON = 0.05
LONG = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: a read of it hangs until something is written."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


async def test_calls_return_and_raise() -> None:
    lone = LoneThread("lone-a")
    assert await lone.run(lambda: 1, LONG) == 1
    with pytest.raises(ZeroDivisionError):
        await lone.run(lambda: 1 // 0, LONG)
    assert await asyncio.gather(*(lone.run(partial(int, text), LONG) for text in "123")) == [1, 2, 3]
    assert not lone.hangs and lone.skipped == 0


async def test_one_thread_hangs_and_calls_behind_it_fail_at_once(pipe: tuple[int, int]) -> None:
    lone = LoneThread("lone-b")
    begun: list[int] = []
    with pytest.raises(TimeoutError, match=r"no answer in 0\.05 s \(lone-b\)"):
        await lone.run(partial(os.read, pipe[0], 1), SOON)
    assert lone.hangs
    for each in range(100):
        with pytest.raises(TimeoutError, match="an earlier call has not ended"):
            await lone.run(partial(begun.append, each), LONG)
    assert (begun, lone.skipped, threads("lone-b")) == ([], 100, 1)
    os.write(pipe[1], b"x")
    await until(lambda: not lone.hangs)
    await lone.run(partial(begun.append, 1), LONG)
    assert begun == [1]


async def test_calls_that_wait_behind_one_that_hangs_fail_with_it(pipe: tuple[int, int]) -> None:
    lone = LoneThread("lone-c")
    calls = [lone.run(partial(os.read, pipe[0], 1), SOON) for _ in range(20)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in found] == [TimeoutError] * 20
    assert (lone.skipped, threads("lone-c")) == (19, 1)
    os.write(pipe[1], b"x")
    await until(lambda: not lone.hangs)


async def test_a_call_whose_caller_has_left_is_waited_for(pipe: tuple[int, int]) -> None:
    lone = LoneThread("lone-d")
    left = asyncio.create_task(lone.run(partial(os.read, pipe[0], 1), LONG))
    await until(lambda: threads("lone-d") == 1)
    left.cancel()
    await asyncio.wait([left])
    next_one = asyncio.create_task(lone.run(lambda: "next", LONG))
    await asyncio.sleep(0)
    os.write(pipe[1], b"x")
    assert await next_one == "next"


async def test_a_failure_is_not_logged_by_the_next_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lone = LoneThread("lone-e")
    with pytest.raises(ZeroDivisionError):
        await lone.run(lambda: 1 // 0, LONG)
    assert await lone.run(lambda: 1, LONG) == 1
    gc.collect()
    assert caplog.messages == []
