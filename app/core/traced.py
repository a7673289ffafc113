"""Traced calls of calls, each on the clock of its caller."""

from collections.abc import Iterable
from time import monotonic_ns
from typing import Final

import msgspec

from app.core.tensors import (
    TENSORS_TRACE,
    InferRequest,
    InferResponse,
    RegionSlice,
    Tensor,
    Timestamps,
    TracedCall,
)

MAX_CALLS: Final = 1024
"""Calls that the trace of one request keeps, and activities that a backend has reported."""
MAX_TENSOR_BYTES: Final = 4 << 20
"""Of the tensors of those calls; with their names it fits into the meta of a frame."""
_TENSOR_BYTES: Final = 256
"""What a tensor counts for besides its data."""


class TracedCalls:
    """The calls that a traced request has led to, within bounds."""

    __slots__ = ("ended", "room")

    def __init__(self) -> None:
        self.ended: list[TracedCall] = []
        self.room = MAX_TENSOR_BYTES

    def begin(self, request: InferRequest, sent_ns: int) -> "CallUnderWay":
        """A call is being made; `sent_ns` (`time.monotonic_ns`) is before its replica hears of it."""
        return CallUnderWay(self, request, sent_ns)

    def add(self, call: TracedCall) -> None:
        """A call has ended; what it led to takes room here too."""
        if len(self.ended) < MAX_CALLS:
            self.ended.append(msgspec.structs.replace(call, calls=tuple(map(self._within, call.calls))))

    def keep(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Copies of tensors, as many as there is room for; without data where that alone is too much."""
        kept: list[Tensor] = []
        for tensor in tensors:
            if self.room < _TENSOR_BYTES:
                break
            self.room -= _TENSOR_BYTES
            data = memoryview(b"" if isinstance(tensor.data, RegionSlice) else tensor.data)
            kept_data = data.tobytes() if data.nbytes <= self.room else b""
            self.room -= len(kept_data)
            kept.append(Tensor(tensor.name, tensor.datatype, tensor.shape, kept_data))
        return kept

    def _within(self, call: TracedCall) -> TracedCall:
        if not (call.inputs or call.outputs or call.calls):
            return call
        inputs, outputs = tuple(self.keep(call.inputs)), tuple(self.keep(call.outputs))
        calls = tuple(map(self._within, call.calls))
        return msgspec.structs.replace(call, inputs=inputs, outputs=outputs, calls=calls)


class CallUnderWay:
    """What is noted of one traced call."""

    __slots__ = ("_calls", "_inputs", "_outputs", "_request", "_sent_ns")

    def __init__(self, calls: TracedCalls, request: InferRequest, sent_ns: int) -> None:
        self._calls = calls
        self._request = request
        self._sent_ns = sent_ns
        self._inputs = calls.keep(request.inputs) if request.trace == TENSORS_TRACE else []
        self._outputs: list[Tensor] = []

    def note(self, response: InferResponse) -> None:
        """Receive a response; with the final one the call has ended."""
        if self._request.trace == TENSORS_TRACE:
            self._outputs += self._calls.keep(response.outputs)
        if response.final:
            call = traced_call(self._request, response, self._sent_ns, monotonic_ns())
            inputs, outputs = tuple(self._inputs), tuple(self._outputs)
            self._calls.add(msgspec.structs.replace(call, inputs=inputs, outputs=outputs))


def traced_call(request: InferRequest, response: InferResponse, sent_ns: int, received_ns: int) -> TracedCall:
    """What the caller notes of a traced call that has ended.

    Args:
        request: what was asked.
        response: its final response.
        sent_ns: when it was sent, `time.monotonic_ns` of the caller, as is `received_ns`.
        received_ns: when the final response was there.
    """
    times = response.timestamps or Timestamps(request_start=sent_ns, request_end=received_ns)
    ns = shift(times, sent_ns, received_ns)
    call = TracedCall(
        request.model_name,
        response.model_version or request.model_version,
        request.id,
        times,
        response.calls,
    )
    return shifted(call, ns)


def shift(times: Timestamps, sent_ns: int, received_ns: int) -> int:
    """What brings a replica's timestamps to the caller's clock.

    Those of another machine do not lie between the sending and the answer; they are moved to its middle.
    """
    first, last = times.request_start, times.request_end
    if sent_ns <= first <= last <= received_ns:
        return 0
    return sent_ns + (received_ns - sent_ns - (last - first)) // 2 - first


def shifted(call: TracedCall, ns: int) -> TracedCall:
    """A call, and all it led to, on a clock that is `ns` ahead."""
    if not ns:
        return call
    fields = {field: getattr(call.timestamps, field) for field in Timestamps.__struct_fields__}
    activities = tuple((name, value + ns) for name, value in fields.pop("activities"))
    known = {field: value + ns for field, value in fields.items() if value}
    times = Timestamps(**known, activities=activities)
    return msgspec.structs.replace(
        call, timestamps=times, calls=tuple(shifted(inner, ns) for inner in call.calls)
    )
