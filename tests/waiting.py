"""Waiting for a condition on an event loop."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Poll a condition; TimeoutError after `timeout` seconds."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.001)
