"""Fixtures of the fronts' tests."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.unit.app.ingress.http_peer import Run
from tests.unit.app.ingress.running_fronts import Fronts, Running


@pytest.fixture
def fronts(tmp_path: Path) -> Fronts:
    """Starts fronts with given settings."""

    @contextmanager
    def start(**args: Any) -> Iterator[Running]:
        running = Running(tmp_path, **args)
        try:
            yield running
        finally:
            running.close()

    return start


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_scenario(scenario: Coroutine[Any, Any, object]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario, 20))

    return run_scenario
