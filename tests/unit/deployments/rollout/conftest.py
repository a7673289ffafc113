"""Fixtures of the tests of rollouts: a repository manager over a fake of Serve, its clock and its judge."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deployments.manager import manager
from tests.unit.deployments.manager.manager_bench import Bench, FakeServe
from tests.unit.deployments.rollout.rollout_bench import RolloutBench


@pytest.fixture
async def bench(repository: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    serve = FakeServe()
    serve.install(monkeypatch)
    monkeypatch.setattr(manager, "private_root", lambda: repository.parent / "private")
    made = Bench(repository, serve)
    yield made
    await made.stop()


@pytest.fixture
def rollouts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> RolloutBench:
    return RolloutBench(bench, monkeypatch)
