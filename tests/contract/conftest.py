"""The server the contract suite talks to, and a client for each protocol and style."""

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2_grpc

from tests.conftest import OPENAI_PORT
from tests.contract.drivers import DRIVERS, Driver, GrpcDriver, open_driver
from tests.contract.wire import Wire


class Addresses(NamedTuple):
    """`host:port` of each protocol."""

    http: str
    grpc: str


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Addresses:
    """NEREID_TEST_HTTP and NEREID_TEST_GRPC name a running server; otherwise one is started."""
    http, grpc = os.environ.get("NEREID_TEST_HTTP"), os.environ.get("NEREID_TEST_GRPC")
    if http and grpc:
        return Addresses(http, grpc)
    started = request.getfixturevalue("nereid_server")
    return Addresses(started.http_url, started.grpc_url)


@pytest.fixture(scope="session")
def openai_address(request: pytest.FixtureRequest) -> str:
    """`host:port` of OpenAI's API."""
    if os.environ.get("NEREID_TEST_HTTP"):
        pytest.skip("only the server that the suite starts has a port for it")
    request.getfixturevalue("nereid_server")
    return f"127.0.0.1:{OPENAI_PORT}"


@pytest.fixture(scope="session", params=DRIVERS)
def client(request: pytest.FixtureRequest, server: Addresses) -> Iterator[Driver]:
    """Each of tritonclient's four clients in turn."""
    with open_driver(request.param, server.http, server.grpc) as driver:
        yield driver


@pytest.fixture(scope="session", params=[name for name in DRIVERS if name.startswith("http")])
def http_client(request: pytest.FixtureRequest, server: Addresses) -> Iterator[Driver]:
    with open_driver(request.param, server.http, server.grpc) as driver:
        yield driver


@pytest.fixture(scope="session", params=[name for name in DRIVERS if name.startswith("grpc")])
def grpc_client(request: pytest.FixtureRequest, server: Addresses) -> Iterator[GrpcDriver]:
    with open_driver(request.param, server.http, server.grpc) as driver:
        assert isinstance(driver, GrpcDriver)
        yield driver


@pytest.fixture(scope="session")
def grpc_stub(server: Addresses) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    """Bare messages, for what the clients refuse to send."""
    with tritonclient.grpc.grpc.insecure_channel(server.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def wire(server: Addresses) -> Iterator[Wire]:
    """A bare HTTP connection, for what the clients cannot send."""
    made = Wire(server.http)
    yield made
    made.close()
