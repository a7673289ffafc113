"""A server that asks for tokens, and a client of it over either protocol."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.access.grants import Grants
from tests.unit.app.ingress.access.guarded import MODULES, guarded
from tests.unit.app.ingress.running_fronts import Fronts, Running


@pytest.fixture
def opened(fronts: Fronts) -> Iterator[tuple[Running, Grants]]:
    with guarded(fronts) as found:
        yield found


@pytest.fixture
def running(opened: tuple[Running, Grants]) -> Running:
    return opened[0]


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(running: Running, protocol: str) -> Iterator[Any]:
    with MODULES[protocol].InferenceServerClient(getattr(running, protocol)) as found:
        yield found
