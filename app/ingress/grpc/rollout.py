"""The service `nereid.RolloutService`."""

from typing import Any

from app.ingress.grpc.rpc import Method, Rpc
from app.ingress.service.interface import InferenceService
from app.protocol.grpc import rollout as messages


def rollout_methods(service: InferenceService) -> dict[str, Method]:
    """Return the service's methods by path."""

    async def status(request: Any) -> Any:
        return messages.encode_status(await service.rollout(request.model_name))

    async def change(request: Any) -> Any:
        change = messages.decode_change(request)
        return messages.encode_status(await service.change_rollout(request.model_name, change))

    async def history(request: Any) -> Any:
        return messages.encode_history(await service.rollout_history(request.model_name))

    rpcs = {
        "RolloutStatus": Rpc("model-repository", status, messages.RolloutStatusRequest, "model_name"),
        "RolloutHistory": Rpc("model-repository", history, messages.RolloutStatusRequest, "model_name"),
        "RolloutChange": Rpc(
            "model-repository", change, messages.RolloutChangeRequest, "model_name", action="change-rollout"
        ),
    }
    return {f"/{messages.SERVICE}/{name}": rpc.method() for name, rpc in rpcs.items()}
