"""The replica of a model version as Serve sees it.

A plain class; `deployments/builder.py` makes it a Serve deployment. Python models run in a process of their
own, everything else in this one.
"""

import gc
import os
import time
from typing import Any

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.encoding import to_msgpack
from app.core.errors import unavailable
from app.core.observability.log import configure_logging
from app.core.system.numpy_threads import follow_variable
from app.ray_adapter.node import listen_host, node_id, replica_rank
from app.ray_adapter.orphans import end_with_raylet
from app.routing.handle_calls import HandleCalls
from app.transport.loops.thread import LoopThread
from backends.registry.place import BackendPlace
from deployments.bls.cluster import RayCluster
from deployments.execution.execution_limit import seconds_allowed
from deployments.model_process.host import ProcessReplica
from deployments.replica.materialize import LocalCopy, materialize_model
from deployments.replica.replica import Place, Replica
from deployments.scheduling.dynamic.serve_batch import serve_batched
from deployments.serve_replica.restarts import Restarts
from deployments.spec import Description, ModelSpec


class ModelVersion:
    """One replica of a model version.

    A failed load does not raise: Serve would retry it and bury the reason in a traceback. The manager reads
    the reason with `describe`, deletes the application and reports it. A replica that Serve restarts later is
    not described by a manager; its health check fails instead, so that Serve tries again.
    """

    def __init__(self, spec: bytes) -> None:
        gc.freeze()  # Ray's and Serve's objects live on: collections during the load need not visit them
        end_with_raylet()
        follow_variable()
        self._spec = msgspec.msgpack.decode(spec, type=ModelSpec)
        configure_logging(self._spec.log)
        self._plane = LoopThread("data-plane")
        self._node_id = node_id()
        self._local: LocalCopy | None = None
        self._replica: Replica | ProcessReplica | None = None
        self._handle: HandleCalls | None = None
        self._described = False
        self._restarts = Restarts(self._spec, replica_rank())
        self._restarts.wait()
        self._description = self._load()
        self._loaded_at = time.monotonic()
        if not self._description.error:
            self._restarts.loaded()

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a request through a Serve handle; see `HandleCalls.call`."""
        if self._handle is None:
            raise unavailable(f"model '{self._spec.name}' failed to load: {self._description.error}")
        return await self._handle.call(*args, **kwargs)

    def record_replica_metadata(self) -> dict[str, str]:
        """Return the addresses of this replica for every router (a Serve hook, called once)."""
        addresses = {} if self._replica is None else self._replica.addresses
        return {"node_id": self._node_id, **addresses}

    async def describe(self) -> bytes:
        """Return the outcome of the load with the present instance groups, a msgpack `Description`."""
        self._described = True
        if self._replica is None or self._description.error:
            return to_msgpack(self._description)
        present = await self._replica.describe()
        return to_msgpack(self._of_this(present))

    async def check_health(self) -> None:
        """Raise to have Serve replace this replica (a Serve hook)."""
        if self._description.error:
            if self._described or time.monotonic() - self._loaded_at > 10:
                raise RuntimeError(self._description.error)
            return
        if broken := self._broken():
            raise RuntimeError(broken)

    def _broken(self) -> str:
        """Return why this replica cannot go on; "" if it can."""
        return "it has no model" if self._replica is None else self._replica.broken()

    async def __del__(self) -> None:
        """Redirect callers, finish requests in flight and unload (a Serve hook)."""
        if not self._description.error and not self._broken():
            self._restarts.ended()
        if self._replica is not None:
            await self._replica.close()
        if self._local is not None:
            self._local.release()
        self._plane.stop()

    def _load(self) -> Description:
        try:
            self._local = materialize_model(self._spec)
            self._replica = self._make(self._local.spec)
            described = self._replica.load(self._restarts.count)
        except Exception as error:
            return Description.of_failure(self._spec, error)
        if not described.error:
            config = mc.ModelConfig.FromString(described.config)
            self._handle = HandleCalls(config, self._replica.send, self._plane)
        return self._of_this(described)

    def _make(self, local: ModelSpec) -> Replica | ProcessReplica:
        path = os.path.join(local.server.placement.socket_directory, f"{os.getpid()}.sock")
        place = Place(self._node_id, path, listen_host(local.server.placement.channel_address))
        config = mc.ModelConfig.FromString(local.config)
        if not BackendPlace.of(config, local.server.backends.path, local.model_folders).executes_python:
            return Replica(local, place, self._plane, RayCluster(), serve_batched)
        seconds = seconds_allowed(config, local.server.backends.max_execution_s)
        again, loaded = self._restarts.again, self._restarts.loaded_again
        return ProcessReplica(local, place, self._plane, again, loaded, seconds)

    def _of_this(self, described: Description) -> Description:
        """Return a description of the spec that this replica was given, whose files may be elsewhere."""
        spec = msgspec.structs.replace(self._spec, config=described.spec.config)
        return msgspec.structs.replace(described, spec=spec)
