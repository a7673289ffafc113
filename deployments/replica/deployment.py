"""The replica of a model version: a served model behind a channel server.

A plain class; `deployments/builder.py` makes it a Serve deployment.
"""

import gc
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.encoding import to_msgpack
from app.core.errors import InferError, text_of, unavailable
from app.core.numpy_threads import follow_variable
from app.core.observability.log import configure_logging
from app.native.choice import is_native
from app.ray_adapter.node import listen_host, node_id, replica_rank
from app.routing.handle_calls import HandleCalls, public_errors
from app.transport.channel.server import ChannelServer
from app.transport.event_loop_thread import LoopThread, freeze_heap
from app.transport.memory.client_regions import use_mappings
from backends import may_call_models
from deployments.replica.control import ReplicaHandler
from deployments.replica.loading import labels_of, load_model
from deployments.replica.materialize import LocalCopy, materialize_model
from deployments.replica.readiness import ReadinessWatch
from deployments.replica.restarts import Restarts
from deployments.replica.served_model import ServedModel
from deployments.spec import Description, ModelSpec

if TYPE_CHECKING:
    from deployments.bls.service import ModelCalls

logger = logging.getLogger(__name__)

_DRAIN_S = 60.0


class ModelVersion:
    """One replica of a model version.

    A failed load does not raise: Serve would retry it and bury the reason in a traceback. The manager reads
    the reason with `describe`, deletes the application and reports it. A replica that Serve restarts later is
    not described by a manager; its health check fails instead, so that Serve tries again.
    """

    def __init__(self, spec: bytes) -> None:
        gc.freeze()  # Ray's and Serve's objects live on: collections during the load need not visit them
        follow_variable()
        self._spec = msgspec.msgpack.decode(spec, type=ModelSpec)
        configure_logging(self._spec.log)
        self._plane = LoopThread("data-plane")
        self._node_id = node_id()
        self._local: LocalCopy | None = None
        self._calls: ModelCalls | None = None
        self._served: ServedModel | None = None
        self._handle: HandleCalls | None = None
        self._server: ChannelServer | None = None
        self._readiness: ReadinessWatch | None = None
        self._addresses: dict[str, str] = {}
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
            with public_errors():
                raise unavailable(f"model '{self._spec.name}' failed to load: {self._description.error}")
        return await self._handle.call(*args, **kwargs)

    def record_replica_metadata(self) -> dict[str, str]:
        """Return the addresses of this replica for every router (a Serve hook, called once)."""
        return {"node_id": self._node_id, **self._addresses}

    async def describe(self) -> bytes:
        """Return the outcome of the load, a msgpack `Description`."""
        self._described = True
        return to_msgpack(self._current())

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
        if not self._plane.alive or self._served is None or not self._served.healthy:
            return f"an instance thread of model '{self._spec.name}' has died"
        return self._served.instances.stuck()

    async def __del__(self) -> None:
        """Redirect callers, finish requests in flight and unload (a Serve hook)."""
        if not self._description.error and not self._broken():
            self._restarts.ended()
        if self._served is not None and self._served.instances.stuck():
            return  # what waits for it cannot be drained: Serve ends the process
        if self._readiness is not None:
            self._plane.loop.call_soon_threadsafe(self._readiness.stop)
        if self._server is not None:
            await self._plane.run(self._server.drain(_DRAIN_S))
            await self._plane.run(self._server.close())
        if self._served is not None:
            self._served.close(timeout=5)
        if self._local is not None:
            self._local.release()
        if self._calls is not None:
            await self._plane.run(self._calls.close())
        self._plane.stop()

    def _current(self) -> Description:
        """Return the outcome of the load with the present instance groups."""
        served, loaded = self._served, self._description
        if served is None or loaded.error or served.instances.declared == loaded.spec.config:
            return loaded
        spec = msgspec.structs.replace(loaded.spec, config=served.instances.declared)
        return msgspec.structs.replace(loaded, spec=spec, config=served.config.SerializeToString())

    def _load(self) -> Description:
        started = time.monotonic()
        if self._spec.gpus:
            # Ray hides all GPUs from a worker that requests none; the configuration decides which are used.
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self._spec.gpus))
        try:
            if is_native(self._spec.transport.data_plane):
                self._plane.loop.call_soon_threadsafe(use_mappings)
            self._local = materialize_model(self._spec)
            self._calls = _model_calls(self._local.spec, self._plane)
            self._served = load_model(self._local.spec, self._plane)
            self._served.statistics.counters.restarts = self._restarts.count
            freeze_heap()
            self._plane.schedule_gc()
            self._plane.call(self._listen(self._served))
            if self._calls is not None:
                self._calls.loaded = True
            self._handle = HandleCalls(self._served.config, self._served.submit, self._plane)
            labels = labels_of(self._served.model)
        except InferError as error:
            return Description(self._spec, error=error.with_code())
        except Exception as error:
            logger.exception("loading model '%s' version %s", self._spec.name, self._spec.version)
            return Description(self._spec, error=f"Internal: {type(error).__name__}: {text_of(error)}")
        return Description(
            self._spec,
            self._served.config.SerializeToString(),
            labels,
            load_seconds=time.monotonic() - started,
            makes_calls=self._calls is not None,
        )

    async def _listen(self, served: ServedModel) -> None:
        await served.open()
        spec = self._spec
        ensembles = self._calls.ensembles if self._calls is not None else list
        handler = ReplicaHandler(served, ensembles, self._node_id)
        self._server = ChannelServer(handler, spec.key, spec.transport)
        self._readiness = served.instances.watch_readiness(self._server.announce)
        await self._readiness.start()
        served.instances.watch_executions(self._server.announce)
        addresses = await self._server.listen(
            unix_path=os.path.join(self._spec.socket_directory, f"{os.getpid()}.sock"),
            tcp_host=listen_host(self._spec.channel_address),
        )
        for address in addresses:
            self._addresses[address.partition(":")[0]] = address


def _model_calls(spec: ModelSpec, plane: LoopThread) -> "ModelCalls | None":
    """Return the server API of a model that may call others; nothing of it is imported for other backends."""
    config = mc.ModelConfig.FromString(spec.config)
    if not may_call_models(config.backend, spec.backend_path, config.runtime, spec.model_folders):
        return None
    from backends.python.api import server_api
    from deployments.bls.service import ModelCalls

    sys.argv = [""]  # as in Triton's stub: a model that parses arguments must not find Ray's
    calls = ModelCalls(spec, plane)
    server_api.install(calls)
    return calls
