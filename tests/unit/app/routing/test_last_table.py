"""The table that an ingress begins with while the manager is away."""

import asyncio
import threading

import pytest

from app.routing import last_table, manager_client
from app.routing.last_table import LastTable
from app.routing.manager_client import follow
from app.routing.table import RoutingTable
from app.routing.table_bytes import encode_table
from tests.waiting import until


class FakeStore:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.writes = 0
        self.gate = threading.Event()
        self.gate.set()

    def read(self, key: str) -> bytes | None:
        return self.values.get(key)

    def write(self, key: str, value: bytes) -> None:
        self.gate.wait(60)
        self.writes += 1
        self.values[key] = value

    def remove(self, key: str) -> None:
        del self.values[key]

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.values if key.startswith(prefix)]


class FakeRouter:
    def __init__(self) -> None:
        self.table = RoutingTable()

    async def apply(self, table: RoutingTable) -> None:
        self.table = table


class FakeManager:
    """Answers once it is back."""

    def __init__(self, table: RoutingTable | None = None) -> None:
        self.table = table
        self.back = asyncio.Event()
        if table is not None:
            self.back.set()

    async def watch(self, ingress: str, applied: int) -> bytes:
        await self.back.wait()
        assert self.table is not None
        if applied == self.table.number:
            await asyncio.Event().wait()
        return encode_table(self.table)

    async def receive(self, ingress: str, number: int) -> None:
        pass


async def kept(store: FakeStore, number: int, key: bytes = b"k") -> LastTable:
    last = LastTable(store, key)
    last.keep(encode_table(RoutingTable(number)), urgent=True)
    await last.kept()
    return last


async def test_the_newest_table_is_kept_and_those_between_are_left_out() -> None:
    store = FakeStore()
    store.gate.clear()
    last = LastTable(store, b"k")
    for number in range(1, 6):
        last.keep(encode_table(RoutingTable(number)), urgent=True)
        await asyncio.sleep(0)
    waiting = asyncio.create_task(last.kept())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    store.gate.set()
    await waiting
    found = last.read()
    assert found is not None and found.number == 5 and store.writes <= 2


async def test_between_large_tables_is_a_rest_but_for_an_urgent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_table, "_REST_S_A_BYTE", 1000.0)
    store = FakeStore()
    last = await kept(store, 1)
    last.keep(encode_table(RoutingTable(2)))
    await asyncio.wait_for(last.kept(), 60)
    await asyncio.sleep(0.05)
    assert store.writes == 1, "nobody waits for it"
    last.keep(encode_table(RoutingTable(3)), urgent=True)
    await asyncio.wait_for(last.kept(), 60)
    found = last.read()
    assert found is not None and found.number == 3 and store.writes == 2


async def test_a_table_is_that_of_one_start_of_the_server() -> None:
    store = FakeStore()
    await kept(store, 1, b"old")
    new = LastTable(store, b"new")
    assert new.read() is None
    await kept(store, 2, b"new")
    new.discard_others()
    assert len(store.values) == 1 and new.read() is not None


async def test_without_the_manager_an_ingress_begins_with_the_last_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager_client, "_FIRST_S", 0.01)
    last = await kept(FakeStore(), 7)
    manager, router = FakeManager(), FakeRouter()
    applied: list[int] = []
    task = asyncio.create_task(
        follow(manager, router, "i", lambda table: applied.append(table.number), last.read)  # type: ignore[arg-type]
    )
    await until(lambda: applied == [7])
    manager.table = RoutingTable(9)
    manager.back.set()
    await until(lambda: applied == [7, 9] and router.table.number == 9)
    task.cancel()


async def test_with_the_manager_the_last_table_is_not_read() -> None:
    store, router = FakeStore(), FakeRouter()
    last = await kept(store, 7)
    applied: list[int] = []
    manager = FakeManager(RoutingTable(9))
    task = asyncio.create_task(
        follow(manager, router, "i", lambda table: applied.append(table.number), last.read)  # type: ignore[arg-type]
    )
    await until(lambda: applied == [9])
    task.cancel()
