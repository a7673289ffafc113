"""The whole path of a request in one process, without Ray: both fronts, a channel, one replica.

Each part runs on a thread of its own, as in service: `ingress`, `replica` and the instance's. The callers are
in another process, so that nothing of theirs is counted.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.ingress.assembly import Serving, make_router
from app.ingress.service.routed import RoutedInferenceService
from app.ray_adapter.serve import replicas
from app.routing.pools import Pools
from app.routing.table import ModelState, RoutingTable, VersionEntry
from app.settings.load import from_args
from app.transport.channel.server import ChannelServer
from app.transport.loops.thread import LoopThread
from app.transport.settings import TransportSettings
from backends.registry.configuration import normalise
from benchmarks.servers import free_ports
from benchmarks.tools import ROOT
from deployments.replica.assembly import assemble
from deployments.replica.control import ReplicaHandler
from deployments.replica.served_model import ServedModel
from deployments.scheduling.dynamic.serve_batch import without_serve
from deployments.spec import ModelSpec, ReplicaSettings

KEY = b"a key for one process, 32 bytes."
NODE = "this-node"
MODEL = "identity"
IN_PYTHON = TransportSettings(data_plane="python")
CONFIG = f"""
name: "{MODEL}" backend: "identity" max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""
PYTHON_MODEL = ROOT / "model_repository" / "identity_fp32" / "1" / "model.py"


class Handle:
    """Stand-in for the Serve handle that keeps a router up to date."""

    def shutdown(self) -> None: ...


def static_pools(addresses: dict[str, str], transport: TransportSettings) -> Pools:
    """Return pools that know their replicas from the start, in place of Serve's reports."""

    def watch(deployment: str, application: str) -> Handle:
        replicas.publish(application, {"replica": {"node_id": NODE, **addresses}})
        return Handle()

    return Pools(NODE, KEY, transport, watch)


class OneProcess:
    """A server of one identity model: in Python with dynamic batching, or the built-in one."""

    def __init__(
        self, directory: Path, transport: TransportSettings = IN_PYTHON, python_model: bool = False
    ) -> None:
        self._transport = transport
        self.http_port, self.grpc_port = free_ports(2)
        self._replica, self._ingress = LoopThread("replica"), LoopThread("ingress")
        config = text_format.Parse(CONFIG, mc.ModelConfig())
        (directory / "1").mkdir()
        if python_model:
            config.backend = "python"
            config.dynamic_batching.SetInParent()
            shutil.copy(PYTHON_MODEL, directory / "1")
        config = normalise(config)
        model = MODEL, 1, str(directory), config.SerializeToString(), f"{MODEL}:1", "", KEY
        spec = ModelSpec(*model, server=ReplicaSettings(transport=self._transport))
        self._assembled = assemble(spec, self._replica, without_serve, self._make_server)
        listening = self._assembled.end.listen(str(directory / "private" / "replica.sock"), "127.0.0.1")
        unix, tcp = self._replica.call(listening)
        addresses = {"unix": unix, "tcp": tcp}
        self._ingress.call(self._open(addresses))

    def stop(self) -> None:
        self._ingress.call(self._close())
        self._replica.call(self._assembled.end.close())
        self._replica.call(self._assembled.close())
        self._ingress.stop()
        self._replica.stop()

    def _make_server(self, served: ServedModel) -> ChannelServer:
        return ChannelServer(ReplicaHandler(served), KEY, self._transport)

    async def _open(self, addresses: dict[str, str]) -> None:
        settings = from_args(
            {
                "model_repository": ".",
                "http_port": self.http_port,
                "grpc_port": self.grpc_port,
                "allow_metrics": False,
                "data_plane": self._transport.data_plane,
            }
        )
        self._router = make_router(settings, static_pools(addresses, self._transport))
        repository: Any = None  # nobody asks for one here
        service = RoutedInferenceService(settings, self._router, repository)
        config = self._assembled.served.config.SerializeToString()
        entry = VersionEntry(MODEL, 1, ModelState.READY, application=f"{MODEL}:1", config=config)
        await self._router.apply(RoutingTable(1, True, (entry,)))
        self._serving = Serving(settings, service)
        await self._serving.open()

    async def _close(self) -> None:
        await self._serving.stop(1.0)
        await self._router.close(1.0)


class Callers:
    """Process that sends requests, one after the other on each connection; see `benchmarks.callers`."""

    def __init__(self, http_port: int, grpc_port: int, connections: int = 1, authorization: str = "") -> None:
        arguments = map(str, (http_port, grpc_port, connections, authorization))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.callers", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, protocol: str, elements: int, requests: int) -> None:
        """Send requests; return when the last one has been answered correctly.

        Raises:
            RuntimeError: one was not.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{protocol} {elements} {requests}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            raise RuntimeError(f"{protocol}: the callers failed")

    def stop(self) -> None:
        self._process.communicate()


@contextmanager
def running(
    directory: Path, transport: TransportSettings = IN_PYTHON, python_model: bool = False
) -> Iterator[Callers]:
    """Start a server and its callers."""
    server = OneProcess(directory, transport, python_model)
    try:
        callers = Callers(server.http_port, server.grpc_port)
        try:
            yield callers
        finally:
            callers.stop()
    finally:
        server.stop()
