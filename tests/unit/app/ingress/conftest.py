"""Fixtures of the fronts' tests."""

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from app.ingress.grpc.front import GrpcFront
from app.ingress.grpc.settings import GrpcSettings
from tests.unit.app.ingress.running_fronts import Running


@pytest.fixture(params=["http2", "grpcio"])
def either_grpc_front(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test over the server of our own and over the grpcio package's."""
    made = GrpcFront.__init__

    def make(front: GrpcFront, service: Any, settings: GrpcSettings | None = None, *others: Any) -> None:
        made(front, service, replace(settings or GrpcSettings(), http2=request.param == "http2"), *others)

    monkeypatch.setattr(GrpcFront, "__init__", make)


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
