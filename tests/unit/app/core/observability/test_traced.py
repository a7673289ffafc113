"""What is kept of the tensors of traced calls."""

import numpy as np

from app.core.observability.traced import MAX_CALLS, MAX_TENSOR_BYTES, OpenCall, TracedCalls
from app.core.tensors import (
    TENSORS_TRACE,
    InferRequest,
    InferResponse,
    RegionSlice,
    Tensor,
    Timestamps,
    TracedCall,
)


def tensor(nbytes: int) -> Tensor:
    return Tensor.from_array("t", np.zeros(nbytes, np.uint8))


def called(calls: TracedCalls, *inputs: Tensor, trace: str = TENSORS_TRACE) -> OpenCall:
    return calls.begin(InferRequest("m", "", inputs, trace=trace), 1)


def held(call: TracedCall) -> int:
    return sum(len(each.data) for each in (*call.inputs, *call.outputs)) + sum(map(held, call.calls))


def test_tensors_are_copied() -> None:
    calls = TracedCalls()
    array = np.ones(3, np.uint8)
    noted = called(calls, Tensor.from_array("t", array))
    noted.record(InferResponse("m", "1", (Tensor.from_array("t", array),)))
    array[:] = 2
    (call,) = calls.ended
    assert [each.data for each in (*call.inputs, *call.outputs)] == [b"\1" * 3] * 2


def test_tensors_in_client_memory_are_kept_without_data() -> None:
    shared = Tensor("s", "INT8", (4,), RegionSlice("r", 0, 4))
    empty = Tensor.from_array("e", np.zeros((0, 4), np.float32))
    kept = TracedCalls().keep((shared, empty))
    assert [(each.name, each.data) for each in kept] == [("s", b""), ("e", b"")]


def test_trace_limits_bytes() -> None:
    calls = TracedCalls()
    for _ in range(20):
        called(calls, tensor(MAX_TENSOR_BYTES // 4), tensor(10)).record(
            InferResponse("m", "1", (tensor(10),))
        )
    assert 0 < sum(map(held, calls.ended)) <= MAX_TENSOR_BYTES
    fourth = calls.ended[3]
    assert fourth.inputs[0].shape == (MAX_TENSOR_BYTES // 4,)
    assert (len(fourth.inputs[0].data), len(fourth.outputs[0].data)) == (0, 10)


def test_endless_stream_stays_within_the_limit() -> None:
    calls = TracedCalls()
    noted = called(calls)
    for _ in range(MAX_TENSOR_BYTES // 64):
        noted.record(InferResponse("m", "1", (tensor(0),), final=False))
    noted.record(InferResponse("m", "1"))
    assert 1000 < len(calls.ended[0].outputs) <= MAX_TENSOR_BYTES // 256


def test_nested_calls_count_against_the_limit() -> None:
    inner = TracedCalls()
    called(inner, tensor(MAX_TENSOR_BYTES - 1000)).record(InferResponse("m", "1"))
    outer = TracedCalls()
    times = Timestamps(1, request_end=2)
    for _ in range(3):
        called(outer).record(InferResponse("m", "1", timestamps=times, calls=tuple(inner.ended)))
    assert sum(map(held, outer.ended)) == MAX_TENSOR_BYTES - 1000
    assert [len(call.calls[0].inputs) for call in outer.ended] == [1, 1, 1]


def test_trace_limits_calls() -> None:
    calls = TracedCalls()
    for _ in range(MAX_CALLS + 5):
        called(calls, tensor(1), trace="-").record(InferResponse("m", "1"))
    assert len(calls.ended) == MAX_CALLS
    assert calls.ended[0].inputs == ()
