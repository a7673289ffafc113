"""Calls nested in a traced request, each on the clock of its caller."""

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
"""Limit of the calls in the trace of one request, and of the activities that a backend reports."""
MAX_TENSOR_BYTES: Final = 4 << 20
"""Limit of the tensors of those calls; with their names they fit into the meta of a frame."""
_TENSOR_BYTES: Final = 256
"""Bytes that a tensor counts for besides its data."""


class TracedCalls:
    """The calls nested in a traced request, within the limits."""

    __slots__ = ("ended", "free_bytes")

    def __init__(self) -> None:
        self.ended: list[TracedCall] = []
        self.free_bytes = MAX_TENSOR_BYTES

    def begin(self, request: InferRequest, sent_ns: int) -> "OpenCall":
        """Start to record a call; `sent_ns` (`time.monotonic_ns`) is before its replica receives it."""
        return OpenCall(self, request, sent_ns)

    def add(self, call: TracedCall) -> None:
        """Add a call that has ended; the calls nested in it count against the limits too."""
        if len(self.ended) < MAX_CALLS:
            self.ended.append(msgspec.structs.replace(call, calls=tuple(map(self._within, call.calls))))

    def keep(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Copy tensors within the limit; one whose data alone exceeds it is kept without data."""
        kept: list[Tensor] = []
        for tensor in tensors:
            if self.free_bytes < _TENSOR_BYTES:
                break
            self.free_bytes -= _TENSOR_BYTES
            data = memoryview(b"" if isinstance(tensor.data, RegionSlice) else tensor.data)
            kept_data = data.tobytes() if data.nbytes <= self.free_bytes else b""
            self.free_bytes -= len(kept_data)
            kept.append(Tensor(tensor.name, tensor.datatype, tensor.shape, kept_data))
        return kept

    def _within(self, call: TracedCall) -> TracedCall:
        if not (call.inputs or call.outputs or call.calls):
            return call
        inputs, outputs = tuple(self.keep(call.inputs)), tuple(self.keep(call.outputs))
        calls = tuple(map(self._within, call.calls))
        return msgspec.structs.replace(call, inputs=inputs, outputs=outputs, calls=calls)


class OpenCall:
    """A traced call in flight."""

    __slots__ = ("_calls", "_inputs", "_outputs", "_request", "_sent_ns")

    def __init__(self, calls: TracedCalls, request: InferRequest, sent_ns: int) -> None:
        self._calls = calls
        self._request = request
        self._sent_ns = sent_ns
        self._inputs = calls.keep(request.inputs) if request.trace == TENSORS_TRACE else []
        self._outputs: list[Tensor] = []

    def record(self, response: InferResponse) -> None:
        """Record a response; the final one ends the call."""
        if self._request.trace == TENSORS_TRACE:
            self._outputs += self._calls.keep(response.outputs)
        if response.final:
            call = traced_call(self._request, response, self._sent_ns, monotonic_ns())
            inputs, outputs = tuple(self._inputs), tuple(self._outputs)
            self._calls.add(msgspec.structs.replace(call, inputs=inputs, outputs=outputs))


def traced_call(request: InferRequest, response: InferResponse, sent_ns: int, received_ns: int) -> TracedCall:
    """Return the record of a traced call that has ended, on the caller's clock.

    Args:
        request: the request of the call.
        response: its final response.
        sent_ns: when the request was sent, `time.monotonic_ns` of the caller, as is `received_ns`.
        received_ns: when the final response was received.
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
    """Return the nanoseconds to add to a replica's timestamps to bring them to the caller's clock."""
    first, last = times.request_start, times.request_end
    if sent_ns <= first <= last <= received_ns:
        return 0
    # Another machine's clock: move the times to the middle of the call.
    return sent_ns + (received_ns - sent_ns - (last - first)) // 2 - first


def shifted(call: TracedCall, ns: int) -> TracedCall:
    """Return a call, and those nested in it, on a clock that is `ns` ahead."""
    if not ns:
        return call
    fields = {field: getattr(call.timestamps, field) for field in Timestamps.__struct_fields__}
    activities = tuple((name, value + ns) for name, value in fields.pop("activities"))
    known = {field: value + ns for field, value in fields.items() if value}
    times = Timestamps(**known, activities=activities)
    return msgspec.structs.replace(
        call, timestamps=times, calls=tuple(shifted(inner, ns) for inner in call.calls)
    )
