"""Publication of routing tables and their acknowledgement."""

import asyncio
import time
from types import SimpleNamespace

import msgspec
import pytest

from app.core.observability.live_settings import LiveChange, LiveSettings
from app.core.observability.log import LogConfig
from app.routing.table import ModelState, RoutingTable, VersionEntry
from app.routing.table_bytes import decode_table
from deployments.manager.publishing import routing_publisher
from deployments.manager.publishing.routing_publisher import RoutingPublisher
from tests.waiting import let_run

ENTRY = VersionEntry("m", 1, ModelState.READY, application="m:1")
EMPTY = RoutingTable(initialised=True)
LOADED = RoutingTable(entries=(ENTRY,), initialised=True)


async def test_watch_returns_the_next_table() -> None:
    publisher = RoutingPublisher()
    watch = asyncio.create_task(publisher.watch("a", publisher.table.number))
    await asyncio.sleep(0)
    number = await publisher.publish(LOADED)
    table = decode_table(await asyncio.wait_for(watch, 60))
    assert (table.number, table.entries, table.initialised) == (number, (ENTRY,), True)


async def test_live_settings_are_published_and_survive_a_restart() -> None:
    publisher = RoutingPublisher()
    assert publisher.table.live is None
    encode = msgspec.msgpack.encode
    current = LiveSettings(LogConfig(log_error=False))
    publisher.configure(encode(LiveChange(log={"log_info": False})), encode(current))
    publisher.configure(encode(LiveChange(log={"log_verbose_level": 1})), encode(LiveSettings()))
    await publisher.publish(EMPTY)
    assert publisher.table.live == LiveSettings(
        LogConfig(log_error=False, log_info=False, log_verbose_level=1)
    )


async def test_wait_acknowledged_waits_for_every_ingress() -> None:
    publisher = RoutingPublisher()
    for ingress in "ab":
        await publisher.receive(ingress, publisher.table.number)
    number = await publisher.publish(LOADED)
    acknowledged = asyncio.create_task(publisher.wait_acknowledged(number))
    first = asyncio.create_task(publisher.watch("a", number))
    await let_run()
    assert not acknowledged.done()
    second = asyncio.create_task(publisher.watch("b", number))
    await asyncio.wait_for(acknowledged, 60)
    first.cancel()
    second.cancel()


async def test_silent_ingress_is_forgotten() -> None:
    publisher = RoutingPublisher()
    await publisher.receive("dead", publisher.table.number)
    number = await publisher.publish(LOADED)
    await asyncio.wait_for(publisher.wait_acknowledged(number), 20)


async def test_table_numbers_rise_over_a_restart() -> None:
    first = RoutingPublisher()
    number = await first.publish(EMPTY)
    await asyncio.sleep(0.01)  # the first number is the wall clock's millisecond
    assert RoutingPublisher().table.number > number


async def test_changes_within_the_shortest_time_go_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = RoutingPublisher()
    number = publisher.table.number
    monkeypatch.setattr(routing_publisher, "PUBLISH_S", 0.01)
    watch = asyncio.create_task(publisher.watch("a", number))
    await publisher.publish(RoutingTable())
    numbers = [
        await publisher.publish(msgspec.structs.replace(LOADED, entries=(ENTRY,) * count))
        for count in range(1, 4)
    ]
    assert decode_table(await watch).number == number + 1, "the first change goes out at once"
    watch = asyncio.create_task(publisher.watch("a", number + 1))
    acknowledged = asyncio.create_task(publisher.wait_acknowledged(numbers[0]))
    table = decode_table(await watch)
    assert (table.number, len(table.entries)) == (numbers[-1], 3)
    assert not acknowledged.done()
    watch = asyncio.create_task(publisher.watch("a", table.number))
    await asyncio.wait_for(acknowledged, 60)  # by a later table, which has what the awaited one had
    watch.cancel()


async def test_tables_go_out_no_faster_than_ten_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert routing_publisher.PUBLISH_S == 0.1
    monkeypatch.setattr(routing_publisher, "PUBLISH_S", 60.0)  # none goes out meanwhile on a busy machine
    publisher = RoutingPublisher()
    first = await publisher.publish(EMPTY)
    await publisher.publish(LOADED)
    watch = asyncio.create_task(publisher.watch("a", first))
    await let_run()
    assert not watch.done()
    assert decode_table(await publisher.watch("b", 0)).number == first
    watch.cancel()


async def test_table_is_encoded_once_for_all() -> None:
    publisher = RoutingPublisher()
    await publisher.publish(LOADED)
    assert await publisher.watch("a", 0) is await publisher.watch("b", 0)


async def test_without_a_newer_table_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_publisher, "WATCH_S", 0.01)
    publisher = RoutingPublisher()
    assert await publisher.watch("a", await publisher.publish(LOADED)) == b""


async def test_ingress_that_connects_is_waited_for_while_it_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    clock = SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns)
    monkeypatch.setattr(routing_publisher, "time", clock)
    publisher = RoutingPublisher()
    await publisher.receive("a", publisher.table.number)
    number = await publisher.publish(LOADED)
    acknowledged = asyncio.create_task(publisher.wait_acknowledged(number))
    for _ in range(10):
        await publisher.receive("a", number)
        now += routing_publisher.CONFIRM_S
        await let_run()
    assert not acknowledged.done()
    now += 0.1
    await asyncio.wait_for(acknowledged, 60)  # it hears nothing any longer, say
