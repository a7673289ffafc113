"""Both event loops, a server with a scripted handler, and a replica in a process of its own."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from app.core.errors import Failure, not_found
from app.core.inference import Cancel, Sink
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.channel.client import Channel
from app.transport.channel.server import ChannelServer
from app.transport.settings import TransportSettings
from tests.waiting import until

KEY = b"a key of the cluster, 32 bytes.."
DEFAULTS = TransportSettings()
ROOT = Path(__file__).resolve().parents[4]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every asynchronous test here under both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["unix", "tcp"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Scripted:
    """A handler that echoes, unless the model's name says otherwise."""

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []
        self.replies: list[Callable[[InferResponse], None]] = []
        self.cancelled: list[str] = []
        self.advised: list[str] = []
        self.released = asyncio.Event()

    def submit(self, request: InferRequest, sink: Sink) -> Cancel:
        if request.model_name == "raise":
            raise not_found("no such model")
        if request.model_name == "crash":
            raise RuntimeError("a secret")
        self.requests.append(request)
        self.replies.append(sink)
        if request.model_name == "three":
            for _ in range(2):
                sink(echo(request, final=False))
        if request.model_name != "hold":
            sink(echo(request))
        return lambda advice=False: (self.advised if advice else self.cancelled).append(request.id)

    async def control(self, verb: str, payload: Any) -> Any:
        if verb == "sleep":
            await asyncio.sleep(payload)
        if verb == "hold":
            await self.released.wait()
        if verb == "raise":
            raise not_found("no such verb")
        if verb == "crash":
            raise RuntimeError("a secret")
        return {"verb": verb, "payload": payload}


def echo(request: InferRequest, final: bool = True) -> InferResponse:
    outputs = tuple(Tensor(t.name, t.datatype, t.shape, t.data) for t in request.inputs)
    return InferResponse(request.model_name, "1", outputs, request.id, request.parameters, final)


def make_request(nbytes: int = 64, model: str = "echo", **fields: Any) -> InferRequest:
    data = np.arange(nbytes, dtype=np.uint8)
    return InferRequest(model, "", (Tensor.from_array("INPUT0", data),), **fields)


class Pair:
    """A server, and channels to it, on one loop."""

    def __init__(self, server: ChannelServer, handler: Scripted, addresses: dict[str, str]) -> None:
        self.server = server
        self.handler = handler
        self.addresses = addresses
        self.channels: list[Channel] = []

    async def connect(self, scheme: str = "unix", **arguments: Any) -> Channel:
        channel = await Channel.connect(self.addresses[scheme], KEY, **arguments)
        self.channels.append(channel)
        return channel

    async def close(self) -> None:
        for channel in self.channels:
            channel.close()
        await self.server.close()
        await until(lambda: all(channel.closed for channel in self.channels))


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Pair]]]:
    """Start servers: `await start(settings)`."""
    pairs: list[Pair] = []

    async def begin(settings: TransportSettings = DEFAULTS) -> Pair:
        handler = Scripted()
        server = ChannelServer(handler, KEY, settings)
        path = str(tmp_path / f"private{len(pairs)}" / "replica.sock")
        unix, tcp = await server.listen(unix_path=path, tcp_host="127.0.0.1")
        pairs.append(Pair(server, handler, {"unix": unix, "tcp": tcp}))
        return pairs[-1]

    yield begin
    for pair in pairs:
        await pair.close()


async def infer(channel: Channel, request: InferRequest) -> InferResponse:
    """Submit and wait for the final response."""
    future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    channel.send(request, lambda response: future.set_result(response) if response.final else None)
    return await asyncio.wait_for(future, 60)


async def failure_of(channel: Channel, request: InferRequest) -> Failure:
    response = await infer(channel, request)
    assert response.failure is not None
    return response.failure


class Finals:
    """Counts the final responses of each of many requests."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.errors: list[Failure] = []

    def sink(self) -> Callable[[InferResponse], None]:
        index = len(self.counts)
        self.counts.append(0)

        def take(response: InferResponse) -> None:
            self.counts[index] += response.final
            if response.failure:
                self.errors.append(response.failure)

        return take


class ReplicaProcess:
    """`replica_process.py` in a child."""

    def __init__(self, child: asyncio.subprocess.Process, addresses: dict[str, str], released: Path) -> None:
        self.child = child
        self.addresses = addresses
        self._released = released

    def release(self) -> None:
        """Let it answer what keeps it busy."""
        self._released.touch()


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[ReplicaProcess]:
    script = Path(__file__).with_name("replica_process.py")
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        str(tmp_path / "private" / "replica.sock"),
        KEY.hex(),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    line = await asyncio.wait_for(child.stdout.readline(), 30)
    unix, tcp = line.decode().split()
    yield ReplicaProcess(child, {"unix": unix, "tcp": tcp}, tmp_path / "private" / "released")
    if child.returncode is None:
        child.kill()
    await child.wait()


@pytest.fixture
def open_descriptors() -> Iterator[Callable[[], int]]:
    yield lambda: len(os.listdir("/proc/self/fd"))
