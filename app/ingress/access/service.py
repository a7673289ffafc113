"""The service as clients with tokens may use it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic

import msgspec
from tritonclient.grpc import service_pb2 as pb

from app.access.grants import Grant
from app.access.tokens import ANONYMOUS
from app.core.cost.report import Report
from app.core.datatypes import pack_bytes
from app.core.inference import Call, Sink
from app.core.rollout.status import RolloutChange, RolloutStatus
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.ingress.access.caller import GRANT
from app.ingress.service.interface import Counted, InferenceService
from app.ingress.service.overview import Overview
from app.routing.table import VersionEntry

CACHE_SALT = "cache_salt"
"""The input of a model whose answers may come sooner after alike requests: after those of the same salt."""


class GuardedService:
    """An `InferenceService` that looks at the token of the client that is being answered.

    It checks the model of an inference or a registration, which a body names, and the limits of the token; it
    leaves other models out of what lists models. The models of other requests are checked by the fronts. An
    ensemble, or a model that calls others, needs the right to none but itself: what they call does not come
    by here.
    """

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self.live, self.ready, self.exiting = service.live, service.ready, service.exiting
        self.model_ready, self.wait_loaded = service.model_ready, service.wait_loaded
        self.server_metadata, self.model_metadata = service.server_metadata, service.model_metadata
        self.rollout, self.rollout_history = service.rollout, service.rollout_history
        self.drift, self.tape = service.drift, service.tape
        self.feedback, self.feedback_figures = service.feedback, service.feedback_figures
        self.shared_memory = service.shared_memory

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        if (grant := GRANT.get()) is not None and name not in grant.permitted:
            grant.require(name)
        return self._service.resolve(name, version)

    def served(self) -> list[VersionEntry]:
        found = self._service.served()
        grant = GRANT.get()
        return found if grant is None else [entry for entry in found if grant.permits(entry.name)]

    def resolve_single(self, name: str, version: str, endpoint: str) -> VersionEntry:
        if (grant := GRANT.get()) is not None and name not in grant.permitted:
            grant.require(name)
        return self._service.resolve_single(name, version, endpoint)

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        grant = GRANT.get()
        if grant is not None and CACHE_SALT in entry.inputs:
            request = _salted(entry, request, grant.name)
        if grant is None or not grant.begin(monotonic):
            return self._service.submit(entry, request, sink)
        try:
            return self._service.submit(entry, request, partial(_deliver, grant, sink))
        except BaseException:
            grant.end()
            raise

    async def statistics(self, name: str = "", version: str = "") -> pb.ModelStatisticsResponse:
        found = await self._service.statistics(name, version)
        if (grant := GRANT.get()) is None:
            return found
        models = [model for model in found.model_stats if grant.permits(model.name)]
        return pb.ModelStatisticsResponse(model_stats=models)

    async def counters(self, name: str, version: str = "") -> list[Counted]:
        if (grant := GRANT.get()) is not None:
            grant.require(name)
        return await self._service.counters(name, version)

    async def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse:
        found = await self._service.repository_index(ready)
        if (grant := GRANT.get()) is None:
            return found
        return pb.RepositoryIndexResponse(
            models=[model for model in found.models if grant.permits(model.name)]
        )

    async def overview(self, cursor: str) -> Overview:
        found = await self._service.overview(cursor)
        if (grant := GRANT.get()) is None:
            return found
        rows = [row for row in found.versions if grant.permits(row.name)]
        if "model-repository" not in grant.needs:  # a reason may tell what is in the repository
            rows = [msgspec.structs.replace(row, reason="") for row in rows]
        names = found.names and [name for name in found.names if grant.permits(name[0])]
        return msgspec.structs.replace(found, versions=rows, names=names)

    async def load_model(
        self, name: str, config: str | None, files: Mapping[str, bytes], who: str = ""
    ) -> None:
        await self._service.load_model(name, config, files, _name_of_caller(who))

    async def unload_model(self, name: str, unload_dependents: bool = False, who: str = "") -> None:
        await self._service.unload_model(name, unload_dependents, _name_of_caller(who))

    async def register_model(self, name: str, directory: str, who: str = "") -> None:
        if (grant := GRANT.get()) is not None:
            grant.require(name)
        await self._service.register_model(name, directory, _name_of_caller(who))

    async def registered_models(self) -> dict[str, str]:
        found = await self._service.registered_models()
        if (grant := GRANT.get()) is None:
            return found
        return {name: directory for name, directory in found.items() if grant.permits(name)}

    async def cost(
        self, since: float, by: Sequence[str], permits: Callable[[str], bool] | None = None
    ) -> Report:
        grant = GRANT.get()
        seen = permits if grant is None or grant.for_all else grant.permits
        return await self._service.cost(since, by, seen)

    async def change_rollout(self, name: str, change: RolloutChange, who: str = ANONYMOUS) -> RolloutStatus:
        return await self._service.change_rollout(name, change, _name_of_caller(who))


def _name_of_caller(otherwise: str) -> str:
    """Return the name of the client's token."""
    grant = GRANT.get()
    return otherwise if grant is None else grant.name


def _salted(entry: VersionEntry, request: InferRequest, name: str) -> InferRequest:
    """Tell a model that keeps what requests have in common whose request it is, whatever the client says."""
    others = tuple(tensor for tensor in request.inputs if tensor.name != CACHE_SALT)
    most = entry.model_config.max_batch_size
    rows = others[0].shape[0] if most and others and others[0].shape else 1
    if not 0 < rows <= max(most, 1):  # the model refuses it
        return msgspec.structs.replace(request, inputs=others)
    salt = Tensor(CACHE_SALT, "BYTES", (rows, 1) if most else (1,), pack_bytes([name] * rows))
    return msgspec.structs.replace(request, inputs=(*others, salt))


def _deliver(grant: Grant, sink: Sink, response: InferResponse) -> None:
    """Deliver a response to `sink`; the final one ends the use of the grant."""
    if response.final:
        grant.end()
    sink(response)
