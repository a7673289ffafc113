"""gRPC's reflection protocol, which tools like grpcurl use to list services and their messages."""

from collections.abc import AsyncIterator
from functools import partial

from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection import SERVICE_NAME
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from app.core.tensors import Buffer
from app.ingress.grpc.rpc import Method
from app.ingress.http2.streaming_call import StreamingCall


def reflection_methods(*services: str) -> dict[str, Method]:
    """Return the reflection methods for some services, by path."""
    servicer = ReflectionServicer((*services, SERVICE_NAME))

    async def serve(messages: AsyncIterator[Buffer], call: StreamingCall) -> None:
        requests = (ServerReflectionRequest.FromString(message) async for message in messages)
        async for response in servicer.ServerReflectionInfo(requests, None):
            await call.write(response.SerializeToString())

    return {f"/{SERVICE_NAME}/ServerReflectionInfo": Method("metadata", partial(StreamingCall, serve))}
