"""Waiting for a condition, on an event loop or in a thread."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Poll a condition; TimeoutError after `timeout` seconds."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.001)


def block_until(condition: Callable[[], object], message: str = "", timeout: float = 60.0) -> None:
    """Poll a condition in a thread; AssertionError with `message` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.001)


async def let_run(passes: int = 50) -> None:
    """Let the event loop run what is ready, local sockets included; no timer has to expire.

    For what must not happen: a task or a peer on the same loop would have got far enough to do it.
    """
    for _ in range(passes):
        await asyncio.sleep(0)
