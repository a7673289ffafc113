"""Fixtures of the gRPC front's tests."""

from collections.abc import Iterator

import pytest
import tritonclient.grpc as client

from tests.unit.app.ingress.grpc_running import Running, running


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture
def triton(server: Running) -> Iterator[client.InferenceServerClient]:
    with client.InferenceServerClient(server.url) as triton:
        yield triton
