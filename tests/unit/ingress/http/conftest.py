"""Fixtures of the HTTP front's tests."""

import asyncio

import pytest
import uvloop


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_scenario(scenario):
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(scenario, 20))

    return run_scenario
