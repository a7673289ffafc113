"""The service `nereid.DriftService`."""

from typing import Any

from app.ingress.grpc.rpc import Method, Rpc
from app.ingress.service.interface import InferenceService
from app.protocol.grpc import drift as messages


def drift_methods(service: InferenceService) -> dict[str, Method]:
    """Return the service's methods by path."""

    async def status(request: Any) -> Any:
        return messages.encode_status(await service.drift(request.model_name, request.model_version))

    rpc = Rpc("model-repository", status, messages.DriftStatusRequest, "model_name")
    return {f"/{messages.SERVICE}/DriftStatus": rpc.method()}
