"""Streams that have much to write let others have the loop."""

import asyncio

from app.ingress.net.turn import Turn


async def others_between(responses: int, waiting: int) -> int:
    """Return how many turns others have while a stream writes, with so many responses waiting."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task, turn = asyncio.create_task(other()), Turn()
    for _ in range(responses):
        await turn.wrote(waiting)
    task.cancel()
    return turns


async def test_a_stream_gives_way_after_some_responses() -> None:
    assert await others_between(31, 1) == 0
    assert await others_between(320, 1) == 10


async def test_a_stream_that_falls_far_behind_does_not() -> None:
    assert await others_between(320, 10_000) == 0
