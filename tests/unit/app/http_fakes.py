"""An in-process service behind an HTTP front under test: identity models, answers set by the test."""

import asyncio
from collections.abc import Mapping

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.access.tokens import ANONYMOUS
from app.core.errors import InferError, not_found, unsupported
from app.core.inference import Sink
from app.core.observability.durations import BOUNDS_S
from app.core.observability.statistics import ReplicaReport
from app.core.rollout.history import RolloutHistory
from app.core.rollout.status import RolloutChange, RolloutStatus
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.ingress.client_memory.registry import SharedMemory
from app.ingress.service.overview import Overview, VersionRow
from app.routing.table import IDLE, ModelState, NotLoaded, VersionEntry
from tests.unit.app.rollout_fakes import rollout, rollout_history
from tests.unit.app.routing_fakes import FakeCall
from tests.unit.app.service_fakes import Insight
from tests.waiting import until

IDENTITY = text_format.Parse(
    """
    name: "identity" backend: "python" max_batch_size: 8
    input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
    output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" }]
    """,
    mc.ModelConfig(),
)


class FakeService(Insight):
    """Answers `INPUT<n>` as `OUTPUT<n>` on the next turn of the loop; `held` keeps the sinks instead."""

    def __init__(self) -> None:
        self.config = mc.ModelConfig()
        self.config.CopyFrom(IDENTITY)
        self.is_ready = True
        self.is_exiting = False
        self.hold = False
        self.held: list[tuple[InferRequest, Sink]] = []
        self.calls: list[FakeCall] = []
        self.loaded: list[tuple[str, str | None, dict[str, bytes]]] = []
        self.asked_by: list[str] = []
        self.unloaded: list[tuple[str, bool]] = []
        self.registered: dict[str, str] = {}
        self.changes: list[tuple[RolloutChange, str]] = []
        self.indexed: list[bool] = []
        self.failure: Exception | None = None
        self.idle = False
        self.large_output = b""
        self.requests = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.shared_memory = SharedMemory("", enabled=False)

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    def exiting(self) -> bool:
        return self.is_exiting

    def _check(self, name: str, version: str) -> None:
        if name != "identity":
            raise not_found(f"Request for unknown model: '{name}' is not found")
        if version not in ("", "1"):
            raise not_found(f"Request for unknown model: '{name}' version {version} is not found")

    def model_ready(self, name: str, version: str = "") -> bool:
        self._check(name, version)
        return self.is_ready

    def server_metadata(self) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(
            name="triton", version="2.0", extensions=["classification", "sequence"]
        )

    def model_metadata(self, name: str, version: str = "") -> pb.ModelMetadataResponse:
        self._check(name, version)
        tensor = pb.ModelMetadataResponse.TensorMetadata(name="INPUT0", datatype="FP32", shape=[-1, -1])
        return pb.ModelMetadataResponse(name=name, versions=["1"], platform="python", inputs=[tensor])

    async def wait_loaded(self, entry: VersionEntry) -> None:
        self.idle = False
        if self.failure is not None:
            raise self.failure

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        self._check(name, version)
        if self.idle:
            raise NotLoaded(VersionEntry(name, 1, ModelState.READY, IDLE))
        labels: dict[str, tuple[str, ...]] = {
            output.name: ("zero", "one", "two") for output in self.config.output
        }
        config = self.config.SerializeToString()
        return VersionEntry(name, 1, ModelState.READY, config=config, labels=labels)

    def served(self) -> list[VersionEntry]:
        return [self.resolve("identity")]

    def resolve_single(self, name: str, version: str, endpoint: str) -> VersionEntry:
        entry = self.resolve(name, version)
        if entry.decoupled:
            raise unsupported(f"{endpoint} doesn't support models with decoupled transaction policy")
        return entry

    async def statistics(self, name: str = "", version: str = "") -> pb.ModelStatisticsResponse:
        if name:
            self._check(name, version)
        entry = pb.ModelStatistics(name="identity", version="1", inference_count=3)
        return pb.ModelStatisticsResponse(model_stats=[entry])

    async def counters(self, name: str, version: str = "") -> list[tuple[VersionEntry, ReplicaReport]]:
        return [(self.resolve(name, version), ReplicaReport(releases={"full": 2, "delay": 1}, pending=3))]

    async def overview(self, cursor: str) -> Overview:
        rows = [
            VersionRow(entry.name, str(entry.version), entry.state.value, kind="python", replicas=1)
            for entry in self.served()
        ]
        return Overview(cursor or "fake.1", 0.0, self.is_ready, BOUNDS_S, rows)

    async def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse:
        self.indexed.append(ready)
        models = [{"name": "a"}, {"name": "b", "version": "1", "state": "READY"}]
        return pb.RepositoryIndexResponse(models=[pb.RepositoryIndexResponse.ModelIndex(**m) for m in models])

    async def load_model(
        self, name: str, config: str | None, files: Mapping[str, bytes], who: str = ""
    ) -> None:
        if self.failure is not None:
            raise self.failure
        self.loaded.append((name, config, dict(files)))
        self.asked_by.append(who)

    async def unload_model(self, name: str, unload_dependents: bool = False, who: str = "") -> None:
        self.unloaded.append((name, unload_dependents))
        self.asked_by.append(who)

    async def register_model(self, name: str, directory: str, who: str = "") -> None:
        if self.failure is not None:
            raise self.failure
        self.registered[name] = directory

    async def registered_models(self) -> dict[str, str]:
        return self.registered

    async def rollout(self, name: str) -> RolloutStatus:
        if self.failure is not None:
            raise self.failure
        return rollout()

    async def change_rollout(self, name: str, change: RolloutChange, who: str = ANONYMOUS) -> RolloutStatus:
        found = await self.rollout(name)
        self.changes.append((change, who))
        return found

    async def rollout_history(self, name: str) -> RolloutHistory:
        await self.rollout(name)
        return rollout_history()

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> FakeCall:
        self.requests += 1
        call = FakeCall()
        self.calls.append(call)
        if self.hold:
            self.held.append((request, sink))
        else:
            self.loop = self.loop or asyncio.get_running_loop()
            self.loop.call_soon(sink, self.answer(request))
        return call

    async def asked(self) -> None:
        """Until a request is held."""
        await until(lambda: bool(self.held))

    def answer(self, request: InferRequest) -> InferResponse:
        if isinstance(self.failure, InferError):
            return failed(self.failure, request.id)
        outputs = [
            Tensor(tensor.name.replace("INPUT", "OUTPUT"), tensor.datatype, tensor.shape, tensor.data)
            for tensor in request.inputs
        ]
        if self.large_output:
            outputs = [Tensor("OUTPUT0", "UINT8", (len(self.large_output),), self.large_output)]
        return InferResponse(request.model_name, "1", tuple(outputs), request.id)
