"""Traced calls of calls, each on the clock of its caller."""

from typing import Final

import msgspec

from app.core.tensors import InferRequest, InferResponse, Timestamps, TracedCall

MAX_CALLS: Final = 1024
"""Calls that the trace of one request keeps, and activities that a backend has reported."""


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
