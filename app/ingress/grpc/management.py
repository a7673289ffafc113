"""RPCs of `inference.GRPCInferenceService` besides inference: server, models, repository, settings."""

from functools import partial

from tritonclient.grpc import service_pb2 as pb

from app.ingress.grpc.live_settings import log_settings, trace_setting
from app.ingress.grpc.rpc import Rpc
from app.ingress.grpc.shared_memory import shared_memory_rpcs
from app.ingress.service.interface import InferenceService, is_ready
from app.ingress.tracing.observer import Observer
from app.protocol.grpc.repository import decode_load, decode_unload, refuse_repository_name
from app.routing.waiting_room import resolve_loaded


def management_rpcs(service: InferenceService, observer: Observer) -> dict[str, Rpc]:
    """Return the RPCs by method name."""
    rpcs = _ManagementRpcs(service)
    return {
        "ServerLive": Rpc("health", rpcs.server_live, pb.ServerLiveRequest),
        "ServerReady": Rpc("health", rpcs.server_ready, pb.ServerReadyRequest),
        "ModelReady": Rpc("health", rpcs.model_ready, pb.ModelReadyRequest, "name"),
        "ServerMetadata": Rpc("metadata", rpcs.server_metadata, pb.ServerMetadataRequest),
        "ModelMetadata": Rpc("metadata", rpcs.model_metadata, pb.ModelMetadataRequest, "name"),
        "ModelConfig": Rpc("model-config", rpcs.model_config, pb.ModelConfigRequest, "name"),
        "ModelStatistics": Rpc("statistics", rpcs.statistics, pb.ModelStatisticsRequest, "name"),
        "RepositoryIndex": Rpc("model-repository", rpcs.index, pb.RepositoryIndexRequest),
        "RepositoryModelLoad": Rpc(
            "model-repository", rpcs.load, pb.RepositoryModelLoadRequest, "model_name", action="load"
        ),
        "RepositoryModelUnload": Rpc(
            "model-repository", rpcs.unload, pb.RepositoryModelUnloadRequest, "model_name", action="unload"
        ),
        "LogSettings": Rpc(
            "logging", partial(log_settings, observer), pb.LogSettingsRequest, action="change-log-settings"
        ),
        "TraceSetting": Rpc(
            "trace",
            partial(trace_setting, observer, service),
            pb.TraceSettingRequest,
            "model_name",
            action="change-trace-settings",
        ),
        **shared_memory_rpcs(service),
    }


class _ManagementRpcs:
    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def server_live(self, message: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._service.live())

    async def server_ready(self, message: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._service.ready())

    async def model_ready(self, message: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        # Clients poll this until a model appears, so that an unknown one is no error; over HTTP it is.
        return pb.ModelReadyResponse(ready=is_ready(self._service, message.name, message.version))

    async def server_metadata(self, message: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return self._service.server_metadata()

    async def model_metadata(self, message: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        await resolve_loaded(self._service, message.name, message.version)
        return self._service.model_metadata(message.name, message.version)

    async def model_config(self, message: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        entry = await resolve_loaded(self._service, message.name, message.version)
        return pb.ModelConfigResponse(config=entry.model_config)

    async def statistics(self, message: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        return await self._service.statistics(message.name, message.version)

    async def index(self, message: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        refuse_repository_name(message.repository_name)
        return await self._service.repository_index(message.ready)

    async def load(self, message: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        config, files = decode_load(message)
        await self._service.load_model(message.model_name, config, files)
        return pb.RepositoryModelLoadResponse()

    async def unload(self, message: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        unload_dependents = decode_unload(message)
        await self._service.unload_model(message.model_name, unload_dependents)
        return pb.RepositoryModelUnloadResponse()
