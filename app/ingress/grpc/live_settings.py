"""RPCs of the logging and trace extensions."""

from tritonclient.grpc import service_pb2 as pb

from app.ingress.service.interface import InferenceService, require_traceable
from app.ingress.tracing.observer import Observer
from app.protocol.observability import log_settings as log_messages
from app.protocol.observability import trace_settings as trace_messages


async def log_settings(observer: Observer, message: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
    """Change the settings in the request; return all settings."""
    change = log_messages.decode_grpc(message)
    return log_messages.encode_grpc(await observer.change_log(change))


async def trace_setting(
    observer: Observer, service: InferenceService, message: pb.TraceSettingRequest
) -> pb.TraceSettingResponse:
    """Change the settings in the request; return all settings."""
    require_traceable(service, message.model_name)
    change = trace_messages.decode_grpc(message)
    return trace_messages.encode_grpc(await observer.change_trace(message.model_name, change))
