"""Versions that go on with their sequences when they are taken out of service."""

import asyncio
from typing import Any, cast

import msgspec
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import unavailable
from app.core.residency import ReplicaUse
from app.routing.table import ModelState, VersionEntry
from deployments.manager import manager
from deployments.rollout import lingering
from deployments.rollout.lingering import Lingering
from tests.unit.deployments.manager.manager_bench import Bench, load
from tests.waiting import until

KEEPS = mc.ModelConfig(sequence_batching=mc.ModelSequenceBatching()).SerializeToString()
CONFIG = 'backend: "identity" max_batch_size: 4 sequence_batching {}'


class FakeReplica:
    """Has a sequence for so many looks."""

    suspected = ""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.fails = False

    async def control(self, verb: str, payload: Any, timeout: float) -> Any:
        if self.fails:
            raise unavailable("gone")
        self.looks -= 1
        return msgspec.to_builtins(ReplicaUse("r", 1, 0.0, max(self.looks, 0)))


class FakeRouter:
    """Opens channels to replicas that the test gives."""

    def __init__(self, *replicas: FakeReplica) -> None:
        self.channels = list(replicas)
        self.opened: list[str] = []
        self.closed: list[str] = []

    def open_control_pool(self, model: str, application: str) -> "FakeRouter":
        self.opened.append(application)
        return self

    def close_control_pool(self, application: str) -> None:
        self.closed.append(application)

    async def wait_available(self, timeout: float) -> bool:
        return True


def entry(config: bytes = KEEPS) -> VersionEntry:
    return VersionEntry("m", 2, ModelState.UNLOADING, application="m:2", config=config)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def pause(seconds: float) -> None:
        found.append(seconds)
        if len(found) > 500:
            raise TimeoutError

    monkeypatch.setattr(lingering, "linger_pause", pause)
    return found


async def test_a_version_is_kept_until_its_sequences_have_ended(pauses: list[float]) -> None:
    router = FakeRouter(FakeReplica(5), FakeReplica(3))
    kept = Lingering(lambda: cast(Any, router))
    kept.keep(entry())
    assert await kept.ended("m:2", lambda: True)
    assert (len(pauses), router.opened, router.closed, kept.entries) == (4, ["m:2"], ["m:2"], {})


async def test_one_is_not_kept_for_ever_nor_without_another_version(pauses: list[float]) -> None:
    replica = FakeReplica(1)
    replica.fails = True
    kept = Lingering(lambda: cast(Any, FakeRouter(replica)))
    kept.keep(entry())
    assert await kept.ended("m:2", lambda: True), "the fake of a pause ends the wait"
    assert len(pauses) == 501 and not kept.entries
    kept.keep(entry())
    assert await kept.ended("m:2", lambda: False) and len(pauses) == 501


async def test_a_version_without_sequences_is_not_kept() -> None:
    kept = Lingering(lambda: cast(Any, FakeRouter()))
    kept.keep(entry(b""))
    kept.keep(msgspec.structs.replace(entry(), application=""))
    assert not kept.entries and not await kept.ended("m:2", lambda: True)
    nowhere = Lingering()
    nowhere.keep(entry())
    assert not nowhere.entries


async def test_the_table_names_a_reloaded_version_until_its_sequences_have_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    replica = FakeReplica(3)
    monkeypatch.setattr(manager.RepositoryManager, "_channels", lambda _: FakeRouter(replica))
    bench.add("m", CONFIG)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8"))
    gate = asyncio.Event()

    async def look(_: float) -> None:
        await gate.wait()

    monkeypatch.setattr(lingering, "linger_pause", look)
    await load(made, "m")
    assert list(made.table.applications) == ["m:1@2"]
    assert list(made.table.routed) == ["m:1@2", "m:1"] and not bench.serve.deleted
    gate.set()
    await until(lambda: bench.serve.deleted == ["m:1"])
    assert list(made.table.routed) == ["m:1@2"], "ingresses know before its replicas drain"
    await asyncio.wait_for(made.unload("m"), 60)
    assert not made.table.routed, "an unloaded model has no version to go on beside"
