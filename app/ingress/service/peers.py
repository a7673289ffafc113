"""Channels between the ingresses of a server, to exchange the counters of ensembles each has run."""

import os
from typing import Any

from app.core.errors import ErrorCode, InferError
from app.core.inference import Cancel, Sink
from app.core.tensors import InferRequest
from app.ensemble.runner import EnsembleRunner
from app.routing.pool import ReplicaPool
from app.transport.channel.client import Channel
from app.transport.channel.server import ChannelServer
from app.transport.settings import TransportSettings


class Peers:
    """This ingress among those of its server. Runs on the data-plane loop."""

    def __init__(self, runner: EnsembleRunner, key: bytes) -> None:
        self._runner = runner
        self._server = ChannelServer(self, key, TransportSettings(arena_bytes=0, data_plane="python"))
        self._pool: ReplicaPool | None = None
        self.addresses: dict[str, str] = {}

    async def open(self, directory: str, host: str, pool: ReplicaPool) -> None:
        """Listen for other ingresses; `pool` has a channel to each, this one included."""
        path = os.path.join(directory, f"ingress-{os.getpid()}.sock")
        for address in await self._server.listen(path, host):
            self.addresses[address.partition(":")[0]] = address
        self._pool = pool

    def channels(self, local: bool) -> list[Channel]:
        """Return the channels to the other ingresses, only those of this node with `local`."""
        if self._pool is None:
            return []
        found = self._pool.local_channels() if local else self._pool.channels
        return [channel for channel in found if channel.address not in self.addresses.values()]

    def submit(self, request: InferRequest, sink: Sink) -> Cancel:
        """Refuse the request: an ingress accepts requests from clients only."""
        raise InferError(ErrorCode.UNSUPPORTED, "an ingress accepts no requests over a channel")

    async def control(self, verb: str, payload: Any) -> Any:
        """Answer a CONTROL frame; `ensembles` returns the counters of this ingress."""
        if verb == "ensembles":
            return self._runner.reports()
        raise InferError(ErrorCode.UNSUPPORTED, f"unknown control verb '{verb}'")

    async def close(self) -> None:
        """Stop listening and end the others' channels."""
        await self._server.close()
