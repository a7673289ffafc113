"""Fixtures of the HTTP/2 server's tests."""

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from app.ingress.net.slow_clients import SendBufferLimit
from app.settings.fronts import Http2Settings
from tests.unit.app.ingress.http2.http2_running import Running, Start
from tests.unit.app.ingress.http2.raw_client import Connect, Raw


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Running] = []

    def make(send_buffers: SendBufferLimit | None = None, **settings: Any) -> Running:
        made.append(Running(Http2Settings(**settings), send_buffers))
        return made[-1]

    yield make
    for running in made:
        running.stop()


@pytest.fixture
def running(start: Start) -> Running:
    return start()


@pytest.fixture
def channel(running: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(
        f"127.0.0.1:{running.port}",
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    ) as channel:
        yield channel


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients, which are closed at the end of the test."""
    with contextlib.ExitStack() as sockets:

        def make(running: Running) -> Raw:
            raw = Raw(running.port)
            sockets.enter_context(raw.socket)
            return raw

        yield make


@pytest.fixture
def raw(running: Running, connect: Connect) -> Raw:
    return connect(running)
