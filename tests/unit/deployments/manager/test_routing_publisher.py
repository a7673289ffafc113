"""Publication of routing tables and their acknowledgement."""

import asyncio

import msgspec

from app.core.observability.live_settings import LiveChange, LiveSettings
from app.core.observability.log import LogConfig
from app.routing.table import ModelState, VersionEntry
from deployments.manager.routing_publisher import RoutingPublisher

ENTRY = VersionEntry("m", 1, ModelState.READY, application="m:1")


async def test_watch_returns_the_next_table() -> None:
    board = RoutingPublisher()
    watch = asyncio.create_task(board.watch("a", board.table.number))
    await asyncio.sleep(0)
    number = await board.publish((ENTRY,), True)
    table = await asyncio.wait_for(watch, 1)
    assert (table.number, table.entries, table.initialised) == (number, (ENTRY,), True)


async def test_live_settings_are_in_the_next_table_and_outlive_the_board() -> None:
    board = RoutingPublisher()
    assert board.table.live is None
    encode = msgspec.msgpack.encode
    current = LiveSettings(LogConfig(log_error=False))
    board.configure(encode(LiveChange(log={"log_info": False})), encode(current))
    board.configure(encode(LiveChange(log={"log_verbose_level": 1})), encode(LiveSettings()))
    await board.publish((), True)
    assert board.table.live == LiveSettings(LogConfig(log_error=False, log_info=False, log_verbose_level=1))


async def test_settled_waits_for_every_ingress() -> None:
    board = RoutingPublisher()
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
    board = RoutingPublisher()
    await board.receive("dead", board.table.number)
    number = await board.publish((ENTRY,), True)
    await asyncio.wait_for(board.settled(number), 4)


async def test_numbers_rise_over_a_restart() -> None:
    first = RoutingPublisher()
    number = await first.publish((), True)
    await asyncio.sleep(0.01)
    assert RoutingPublisher().table.number > number
