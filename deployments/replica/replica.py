"""A loaded model version behind a channel server: what serves it, in Ray's worker or in a process of its own.

Nothing here knows Ray.
"""

import os
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.chat_templates import TextFacts
from app.core.inference import Cancel, Sink
from app.core.system.processes import own_processes
from app.core.tensors import InferRequest
from app.transport.channel.server import ChannelServer
from app.transport.loops.thread import LoopThread, freeze_heap
from backends.registry.place import BackendPlace
from deployments.replica.assembly import Assembled, assemble
from deployments.replica.control import ReplicaHandler
from deployments.replica.loading import labels_of, text_of
from deployments.replica.served_model import ServedModel
from deployments.scheduling.dynamic.serve_batch import MakeBatched
from deployments.spec import Description, ModelSpec

if TYPE_CHECKING:
    from deployments.bls.cluster import Cluster
    from deployments.bls.service import ModelCalls

_DRAIN_S: Final = 60.0


class Place(msgspec.Struct, frozen=True):
    """The place where a replica is reached.

    Attributes:
        node: the id of the node.
        unix: the path of its socket.
        host: the address that it listens on.
        port: the port there; 0 for one that is free.
    """

    node: str
    unix: str
    host: str
    port: int = 0


class Replica:
    """One replica of a model version.

    Args:
        spec: the model version, whose files are on this node.
        place: where it listens.
        plane: the thread of its data-plane loop.
        cluster: how the model's own calls reach the manager and other replicas.
        batched: see `load_model`.

    Attributes:
        addresses: of its channel server, by scheme, once it has loaded.
    """

    def __init__(
        self, spec: ModelSpec, place: Place, plane: LoopThread, cluster: "Cluster", batched: MakeBatched
    ) -> None:
        self.addresses: dict[str, str] = {}
        self.served: ServedModel | None = None
        self._spec = spec
        self._place = place
        self._plane = plane
        self._cluster = cluster
        self._batched = batched
        self._calls: ModelCalls | None = None
        self._assembled: Assembled[ChannelServer] | None = None
        self._description = Description(spec, error="not loaded")

    def load(self, restarts: int) -> Description:
        """Load the model and listen; a failure is in the description. Blocks.

        Args:
            restarts: how many replicas at this place have ended unexpectedly.
        """
        started = time.monotonic()
        spec = self._spec
        if spec.gpus:
            # Ray hides all GPUs from a worker that requests none; the configuration decides which are used.
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpus))
        try:
            labels, text = self._load(restarts)
        except Exception as error:
            self._description = Description.of_failure(spec, error)
        else:
            assert self.served is not None
            self._description = Description(
                spec,
                self.served.config.SerializeToString(),
                labels,
                load_seconds=time.monotonic() - started,
                makes_calls=self._calls is not None,
                text=text,
            )
        return self._description

    def _load(self, restarts: int) -> tuple[dict[str, tuple[str, ...]], TextFacts]:
        self._calls = _model_calls(self._spec, self._plane, self._cluster)
        self._assembled = assemble(self._spec, self._plane, self._batched, self._make_server)
        self.served = self._assembled.served
        self.served.statistics.counters.restarts = restarts
        freeze_heap()
        self._plane.schedule_gc()
        listening = self._assembled.end.listen(self._place.unix, self._place.host, self._place.port)
        self.addresses = {each.partition(":")[0]: each for each in self._plane.call(listening)}
        if self._calls is not None:
            self._calls.loaded = True
        return labels_of(self.served.model), text_of(self.served.model)

    def _make_server(self, served: ServedModel) -> ChannelServer:
        own = self._calls
        ensembles, calls = (own.ensembles, own.take_counts) if own is not None else (list, list)
        handler = ReplicaHandler(served, ensembles, self._place.node, own_processes, calls)
        return ChannelServer(handler, self._spec.key, self._spec.server.transport)

    async def describe(self) -> Description:
        """Return the outcome of the load with the present instance groups."""
        served, loaded = self.served, self._description
        if served is None or loaded.error or served.instances.declared == loaded.spec.config:
            return loaded
        spec = msgspec.structs.replace(loaded.spec, config=served.instances.declared)
        return msgspec.structs.replace(loaded, spec=spec, config=served.config.SerializeToString())

    def broken(self) -> str:
        """Return why a replica that was loaded cannot go on; "" if it can."""
        if not self._plane.alive or self.served is None or not self.served.healthy:
            return f"an instance thread of model '{self._spec.name}' has died"
        return self.served.instances.stuck()

    def send(self, request: InferRequest, sink: Sink) -> Cancel:
        """Submit a request of a Serve handle; see `ServedModel.submit`."""
        assert self.served is not None
        return self.served.submit(request, sink)

    async def close(self) -> None:
        """Redirect callers, finish requests in flight and unload; not on the data-plane loop."""
        if self.served is not None and self.served.instances.stuck():
            return  # what waits for it cannot be drained: the process ends
        if self._assembled is not None:
            await self._plane.run(self._assembled.end.drain(_DRAIN_S))
            await self._plane.run(self._assembled.end.close())
            await self._plane.run(self._assembled.close())
        if self._calls is not None:
            await self._plane.run(self._calls.close())


def _model_calls(spec: ModelSpec, plane: LoopThread, cluster: "Cluster") -> "ModelCalls | None":
    """Return the server API of a model that may call others; nothing of it is imported for other backends."""
    config = mc.ModelConfig.FromString(spec.config)
    if not BackendPlace.of(config, spec.server.backends.path, spec.model_folders).may_call_models:
        return None
    from backends.python.api import server_api
    from deployments.bls.service import ModelCalls

    sys.argv = [""]  # as in Triton's stub: a model that parses arguments must not find Ray's
    calls = ModelCalls(spec, plane, cluster)
    server_api.install(calls)
    return calls
