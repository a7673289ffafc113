"""Fixtures of the fronts' tests."""

import asyncio
from contextlib import contextmanager

import pytest
import uvloop

from tests.unit.app.ingress.running_fronts import Running


@pytest.fixture
def fronts(tmp_path):
    """Starts fronts with given settings."""

    @contextmanager
    def start(**args):
        running = Running(tmp_path, **args)
        try:
            yield running
        finally:
            running.close()

    return start


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_scenario(scenario):
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(scenario, 20))

    return run_scenario
