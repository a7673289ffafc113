"""Guarded methods of a gRPC server."""

from collections.abc import Sequence
from contextvars import Context

from app.core.tensors import Buffer
from app.ingress.access.caller import context_of
from app.ingress.access.guard import Ask, Guard
from app.ingress.http2.call import OpenCall, refuse
from app.ingress.http2.state import Http2State
from app.ingress.http2.stream import Stream, StreamReceiver
from app.protocol.grpc.framing import CallHead
from app.protocol.status import grpc_status


def guarded_method(guard: Guard | None, ask: Ask, opens: OpenCall) -> OpenCall:
    """Return what opens a call for clients that may, where there is anything to decide."""
    if guard is None or not guard.concerns(ask):
        return opens
    known = guard

    def open_call(state: Http2State, stream: Stream, head: CallHead) -> StreamReceiver | None:
        grant, refusal = known.admit(_authorization(head), ask)
        record = known.record(ask, grant, "grpc", stream.peer) if ask.action else None
        if refusal is not None:
            known.refused(ask, grant, refusal, record)
            refuse(stream, grpc_status(refusal), refusal.message)
            return None
        context = context_of(grant, record)
        call = context.run(opens, state, stream, head)
        return None if call is None else _GuardedCall(call, context)

    return open_call


def _authorization(head: CallHead) -> str:
    for name, value in head.metadata:
        if name == "authorization":
            return str(value)
    return ""


class _GuardedCall:
    """A call whose requests are received in the context of its client."""

    __slots__ = ("_call", "_run", "cancelled")

    def __init__(self, call: StreamReceiver, context: Context) -> None:
        self._call = call
        self._run = context.run
        self.cancelled = call.cancelled

    def receive(self, data: bytes, end: bool) -> None:
        self._run(self._call.receive, data, end)

    def receive_segments(self, segments: Sequence[Buffer], size: int, end: bool) -> None:
        self._run(self._call.receive_segments, segments, size, end)
