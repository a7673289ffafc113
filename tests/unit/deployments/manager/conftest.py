"""Fixtures of the repository manager's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deployments.manager import manager
from deployments.manager.publishing import routing_publisher
from tests.unit.deployments.manager.manager_bench import Bench, FakeServe


@pytest.fixture
async def bench(repository: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    serve = FakeServe()
    serve.install(monkeypatch)
    monkeypatch.setattr(routing_publisher, "PUBLISH_S", 0.0)
    monkeypatch.setattr(manager, "private_root", lambda: repository.parent / "private")
    made = Bench(repository, serve)
    yield made
    await made.stop()
