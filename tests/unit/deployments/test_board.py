"""Publication of routing tables and their acknowledgement."""

import asyncio

from app.routing.table import ModelState, VersionEntry
from deployments.repository.board import Board

ENTRY = VersionEntry("m", 1, ModelState.READY, application="m:1")


async def test_watch_returns_the_next_table() -> None:
    board = Board()
    watch = asyncio.create_task(board.watch("a", board.table.number))
    await asyncio.sleep(0)
    number = await board.publish((ENTRY,), True)
    table = await asyncio.wait_for(watch, 1)
    assert (table.number, table.entries, table.initialised) == (number, (ENTRY,), True)


async def test_settled_waits_for_every_ingress() -> None:
    board = Board()
    for ingress in "ab":
        await board.receive(ingress, board.table.number)
    number = await board.publish((ENTRY,), True)
    settled = asyncio.create_task(board.settled(number))
    first = asyncio.create_task(board.watch("a", number))
    await asyncio.sleep(0.05)
    assert not settled.done()
    second = asyncio.create_task(board.watch("b", number))
    await asyncio.wait_for(settled, 1)
    first.cancel()
    second.cancel()


async def test_a_silent_ingress_is_forgotten() -> None:
    board = Board()
    await board.receive("dead", board.table.number)
    number = await board.publish((ENTRY,), True)
    await asyncio.wait_for(board.settled(number), 4)


async def test_numbers_rise_over_a_restart() -> None:
    first = Board()
    number = await first.publish((), True)
    await asyncio.sleep(0.01)
    assert Board().table.number > number
