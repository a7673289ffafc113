"""The readiness watch of a model."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from backends.base import Backend, Instance, Model, Request
from deployments.replica import readiness
from deployments.replica.readiness import ReadinessWatch


class Plain(Backend):
    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None: ...


class Moody(Plain):
    ready = False
    asked = 0

    def instance_ready(self, instance: Instance) -> bool:
        self.asked += 1
        if self.asked == 3:
            raise RuntimeError("no idea")
        return self.ready


def instance() -> Instance:
    return Instance(Model(mc.ModelConfig(name="m"), 1, Path("m")), "m_0")


async def test_model_without_readiness_is_not_watched() -> None:
    watch = ReadinessWatch(Plain(), lambda: [instance()], lambda _: pytest.fail("told"))
    await watch.start()
    assert watch._task is None


async def test_readiness_change_is_announced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_INTERVAL_S", 3600)
    told: asyncio.Queue[bool] = asyncio.Queue()
    backend, watched = Moody(), instance()
    watch = ReadinessWatch(backend, lambda: [watched], told.put_nowait)
    await watch.start()
    assert told.get_nowait() is False
    backend.ready = True
    threading.Thread(target=watched.readiness_changed).start()
    assert await asyncio.wait_for(told.get(), 30) is True
    watched.readiness_changed()  # and an exception is a no
    assert await asyncio.wait_for(told.get(), 30) is False
    watch.stop()


async def test_readiness_change_is_found_by_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_INTERVAL_S", 0.001)
    told: asyncio.Queue[bool] = asyncio.Queue()
    backend = Moody()
    watch = ReadinessWatch(backend, lambda: [instance()], told.put_nowait)
    await watch.start()
    backend.ready = True
    while not await asyncio.wait_for(told.get(), 30):
        pass
    watch.stop()
