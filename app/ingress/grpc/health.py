"""The service `grpc.health.v1.Health`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from app.core.tensors import Buffer
from app.ingress.grpc.rpc import Method
from app.ingress.http2.call import UnaryCall, coroutine_handler
from app.ingress.http2.streaming_call import StreamingCall

_POLL_S: Final = 1.0
"""Seconds between two checks of a watched health."""
# HealthCheckResponse{status: SERVING | NOT_SERVING}: one enum field, not worth a dependency.
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"


class HealthService:
    """Serves the health of the whole server, whatever service a request names."""

    def __init__(self, is_serving: Callable[[], bool], stopping: asyncio.Event) -> None:
        self._is_serving = is_serving
        self._stopping = stopping

    def methods(self) -> dict[str, Method]:
        """Return the service's methods by path."""
        return {
            "/grpc.health.v1.Health/Check": Method(
                "health", partial(UnaryCall, coroutine_handler(self._check))
            ),
            "/grpc.health.v1.Health/Watch": Method("health", partial(StreamingCall, self._watch)),
        }

    def _status(self) -> bytes:
        return _SERVING if self._is_serving() else _NOT_SERVING

    async def _check(self, message: Buffer) -> bytes:
        return self._status()

    async def _watch(self, messages: AsyncIterator[Buffer], call: StreamingCall) -> None:
        """Send the status now and whenever it changes, until the server stops."""
        sent = b""
        while True:
            status = self._status()
            if status != sent:
                await call.write(status)
                sent = status
            if self._stopping.is_set():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._stopping.wait()
