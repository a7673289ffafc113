"""Fixtures of the gRPC front's tests."""

import pytest
import tritonclient.grpc as client

from tests.unit.app.ingress.grpc_running import running


@pytest.fixture
def server():
    with running() as server:
        yield server


@pytest.fixture
def triton(server):
    with client.InferenceServerClient(server.url) as triton:
        yield triton
