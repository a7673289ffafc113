"""The service `nereid.FeedbackService`."""

import asyncio
from typing import Any, Final

from app.core.feedback.records import FEW_RECORDS
from app.ingress.grpc.rpc import Method, Rpc
from app.ingress.service.interface import InferenceService
from app.protocol.grpc.feedback import decode_feedback, encode_accepted, encode_figures
from nereid_client.feedback import messages

SERVICE: Final = messages.SERVICE


def feedback_methods(service: InferenceService) -> dict[str, Method]:
    """Return the service's methods by path."""

    async def feedback(request: Any) -> Any:
        if len(request.feedback) > FEW_RECORDS:
            records = await asyncio.to_thread(decode_feedback, request)
        else:
            records = decode_feedback(request)
        await service.feedback(request.model_name, request.model_version, records)
        return encode_accepted(request.model_name, len(records))

    async def figures(request: Any) -> Any:
        return encode_figures(request.model_name, await service.feedback_figures(request.model_name))

    rpcs = {
        "ModelFeedback": Rpc("feedback", feedback, messages.FeedbackRequest, "model_name"),
        "FeedbackFigures": Rpc("statistics", figures, messages.FeedbackFiguresRequest, "model_name"),
    }
    return {f"/{SERVICE}/{name}": rpc.method() for name, rpc in rpcs.items()}
