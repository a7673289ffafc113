"""Guarded methods of a gRPC server."""

from collections.abc import Sequence
from contextvars import Context
from typing import Final

from app.access.grants import Grants
from app.core.tensors import Buffer
from app.ingress.access.caller import context_of
from app.ingress.access.guard import Ask, Guard
from app.ingress.http2.call import OpenCall, refuse
from app.ingress.http2.state import Http2State
from app.ingress.http2.stream import Stream, StreamReceiver
from app.protocol.grpc.framing import CallHead
from app.protocol.status import grpc_status

Metadata = tuple[tuple[str, str | bytes], ...]

_MAX_KNOWN: Final = 256
"""Metadata kept with the contexts of their clients, for each method."""


def guarded_method(guard: Guard | None, ask: Ask, opens: OpenCall) -> OpenCall:
    """Return what opens a call for clients that may, where there is anything to decide."""
    return _GuardedMethod(guard, ask, opens) if guard is not None and guard.concerns(ask) else opens


class _GuardedMethod:
    """Opens the calls of one method.

    Args:
        guard: decides.
        ask: what calls ask for.
        opens: opens the call of a client that may.
    """

    def __init__(self, guard: Guard, ask: Ask, opens: OpenCall) -> None:
        self._guard = guard
        self._grants = guard.grants or Grants()
        self._ask = ask
        self._opens = opens
        # By the metadata of a call, which is one object for all calls of a connection with the same headers.
        self._known: dict[Metadata, Context] = {}
        self._number = -1  # of the set of tokens that `_known` is of

    def __call__(self, state: Http2State, stream: Stream, head: CallHead) -> StreamReceiver | None:
        if self._grants.number != self._number:
            self._known, self._number = {}, self._grants.number
        context = self._known.get(head.metadata)
        if context is None:
            context = self._admit(head.metadata, stream)
            if context is None:
                return None
        call = context.run(self._opens, state, stream, head)
        return None if call is None else _GuardedCall(call, context)

    def _admit(self, metadata: Metadata, stream: Stream) -> Context | None:
        """Return the context in which to answer a client; refuse a client that may not ask."""
        ask = self._ask
        grant, refusal = self._guard.admit(_authorization(metadata), ask)
        record = self._guard.record(ask, grant, "grpc", stream.peer)
        if refusal is not None:
            self._guard.refused(ask, grant, refusal, record)
            refuse(stream, grpc_status(refusal), refusal.message)
            return None
        context = context_of(grant, record)
        # Nobody enters a context twice: calls are opened, and requests received, one after the other.
        if record is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[metadata] = context
        return context


def _authorization(metadata: Metadata) -> str:
    for name, value in metadata:
        if name == "authorization":
            return str(value)
    return ""


class _GuardedCall:
    """A call whose requests are received in the context of its client."""

    __slots__ = ("_call", "_context")

    def __init__(self, call: StreamReceiver, context: Context) -> None:
        self._call = call
        self._context = context

    def receive(self, data: bytes, end: bool) -> None:
        self._context.run(self._call.receive, data, end)

    def receive_segments(self, segments: Sequence[Buffer], size: int, end: bool) -> None:
        self._context.run(self._call.receive_segments, segments, size, end)

    def cancelled(self) -> None:
        self._call.cancelled()

    def arriving(self) -> tuple[int, int]:
        return self._call.arriving()

    def end(self, status: int, message: str) -> None:
        self._call.end(status, message)
