"""Replicas to route to: real channel servers on this machine, which answer when the test says so."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from app.core.inference import Cancel
from app.core.tensors import InferRequest, InferResponse
from app.ray_adapter.serve.replicas import ReplicaAddress
from app.transport.channel.server import ChannelServer
from app.transport.settings import TransportSettings

KEY = b"a key of the cluster, 32 bytes.."
NODE = "node-1"
SETTINGS = TransportSettings(arena_bytes=0)


class Replica:
    """Holds every request until `answer`; echoes control calls with its name."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.path = str(directory / name)
        self.held: list[tuple[InferRequest, Callable[[InferResponse], None]]] = []
        self.taken = 0
        self.cancelled: list[str] = []
        self.controls: list[tuple[str, Any]] = []
        self.addresses: dict[str, str] = {}
        self.server = ChannelServer(self, KEY, SETTINGS)

    def submit(self, request: InferRequest, sink: Callable[[InferResponse], None]) -> Cancel:
        self.taken += 1
        self.held.append((request, sink))
        return lambda advice=False: self.cancelled.append(request.id)

    async def control(self, verb: str, payload: Any) -> Any:
        self.controls.append((verb, payload))
        return self.name

    def answer(self) -> None:
        """Answer what is held."""
        held, self.held = self.held, []
        for request, reply in held:
            reply(InferResponse(request.model_name, "1", (), request.id, {"by": self.name}))

    async def listen(self) -> None:
        unix, tcp = await self.server.listen(self.path, "127.0.0.1")
        self.addresses = {"unix": unix, "tcp": tcp}

    async def restart(self) -> None:
        """A new process at the same unix path."""
        self.held = []
        self.server = ChannelServer(self, KEY, SETTINGS)
        await self.listen()

    def metadata(self, node: str = NODE) -> dict[str, dict[str, str]]:
        """What Serve reports of this replica."""
        return {self.name: {"node_id": node, **self.addresses}}

    def address(self, node: str = NODE) -> ReplicaAddress:
        return ReplicaAddress(self.name, node, self.addresses["unix"], self.addresses["tcp"])


Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start replicas: `a, b = await start("a", "b")`."""
    replicas: list[Replica] = []

    async def begin(*names: str) -> list[Replica]:
        made = [Replica(name, tmp_path / "private") for name in names]
        replicas.extend(made)
        for replica in made:
            await replica.listen()
        return made

    yield begin
    for replica in replicas:
        await replica.server.close()


class Sink:
    """The responses of many requests."""

    def __init__(self) -> None:
        self.responses: list[InferResponse] = []

    def __call__(self, response: InferResponse) -> None:
        self.responses.append(response)

    def by(self) -> list[str]:
        """Which replica answered each request."""
        return sorted(str(response.parameters.get("by", response.failure)) for response in self.responses)


def request(request_id: str = "", model: str = "m", version: str = "") -> InferRequest:
    return InferRequest(model, version, (), id=request_id)
