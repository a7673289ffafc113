"""ModelStreamInfer over a real connection."""

import itertools
import queue
import threading
from typing import Any

import grpc
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from app.core.errors import not_found
from app.core.tensors import InferResponse, Tensor, failed
from app.ingress.net.slow_clients import SendBufferLimit
from app.settings.fronts import GrpcSettings, StreamLimits
from tests.unit.app.ingress.grpc_running import WAIT_S, Running, Stream, refusal, running


def test_stream_keeps_the_order_of_ordinary_requests(
    server: Running, triton: client.InferenceServerClient
) -> None:
    stream = Stream(triton)
    for request_id in "123":
        stream.send("held", request_id)
    calls = [server.service.next_call() for _ in range(3)]
    for value in (2, 1, 0):
        server.do(calls[value].answer, value)
    assert stream.next_values(3) == [("1", 0), ("2", 1), ("3", 2)]


def test_stream_interleaves_decoupled_responses(
    server: Running, triton: client.InferenceServerClient
) -> None:
    stream = Stream(triton)
    for model, request_id in (("held", "h"), ("stream", "a"), ("stream", "b")):
        stream.send(model, request_id)
    held, first, second = (server.service.next_call() for _ in range(3))
    for call, value, final in ((first, 1, False), (second, 2, True), (first, 3, True), (held, 4, True)):
        server.do(call.answer, value, final=final)
    results = [stream.next().get_response() for _ in range(4)]
    assert [r.id for r in results] == ["a", "b", "a", "h"]
    assert [r.parameters["triton_final_response"].bool_param for r in results] == [False, True, True, True]


def test_stream_errors_are_in_band_and_in_order(
    server: Running, triton: client.InferenceServerClient
) -> None:
    stream = Stream(triton)
    stream.send("held", "1")
    stream.send("unknown", "2")
    stream.send("echo", "bad")
    stream.send("echo", "4")
    server.do(server.service.next_call().answer, 8)
    assert stream.next_values(1) == [("1", 8)]
    assert stream.next().message() == "Request for unknown model: 'unknown' is not found"
    assert stream.next().message() == "bad request"
    assert stream.next_values(1) == [("4", 5)]


def test_stream_of_fail_fast_client_ends_with_the_status(
    server: Running, triton: client.InferenceServerClient
) -> None:
    stream = Stream(triton, headers={"triton_grpc_error": "true"})
    stream.send("held", "1")
    held = server.service.next_call()
    stream.send("stream", "2")
    server.do(server.service.next_call().sink, failed(not_found("no such thing"), "2"))
    error = stream.next()
    assert (error.status(), error.message()) == ("StatusCode.NOT_FOUND", "no such thing")
    assert held.cancelled.wait(WAIT_S)


def test_half_close_finishes_requests_in_flight(
    server: Running, triton: client.InferenceServerClient
) -> None:
    stream = Stream(triton)
    stream.send("held", "1")
    call = server.service.next_call()
    closing = threading.Thread(target=triton.stop_stream)
    closing.start()
    server.do(call.answer, 3)
    assert stream.next_values(1) == [("1", 3)]
    closing.join(WAIT_S)
    assert not closing.is_alive() and not call.cancelled.is_set()


def test_cancelled_stream_cancels_its_requests(server: Running, triton: client.InferenceServerClient) -> None:
    stream = Stream(triton)
    stream.send("held", "1")
    stream.send("stream", "2")
    calls = [server.service.next_call() for _ in range(2)]
    triton.stop_stream(cancel_requests=True)
    assert all(call.cancelled.wait(WAIT_S) for call in calls)


def test_reading_pauses_while_all_slots_are_occupied() -> None:
    settings = GrpcSettings(stream=StreamLimits(requests=2))
    with running(settings) as server, client.InferenceServerClient(server.url) as triton:
        stream = Stream(triton)
        for request_id in "1234":
            stream.send("held", request_id)
        calls = [server.service.next_call() for _ in range(2)]
        with pytest.raises(queue.Empty):
            server.service.calls.get(timeout=0.3)
        server.do(calls[0].answer, 1)
        calls.append(server.service.next_call())
        server.do(calls[1].answer, 2)
        calls.append(server.service.next_call())
        for call in calls[2:]:
            server.do(call.answer, 3)
        assert [pair[0] for pair in stream.next_values(4)] == ["1", "2", "3", "4"]


def overrun(server: Running, channel: Any) -> Any:
    """Let a model answer faster than its client reads, until it is cancelled; return its responses."""
    start = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer
    sending: queue.SimpleQueue[Any] = queue.SimpleQueue()
    responses = start(iter(sending.get, None))
    sending.put(pb.ModelInferRequest(model_name="stream", id="1"))
    call = server.service.next_call()
    chunk = Tensor("OUTPUT", "INT8", (1 << 15,), bytes(1 << 15))
    response = InferResponse("stream", "1", (chunk,), final=False)
    for _ in range(1000):
        if call.cancelled.is_set():
            break
        server.do(call.sink, response)
    assert call.cancelled.is_set()
    sending.put(None)
    return responses


def test_decoupled_request_that_fills_the_buffer_is_cancelled(server: Running) -> None:
    settings = GrpcSettings(stream=StreamLimits(byte_size=1 << 20))
    with running(settings) as server, grpc.insecure_channel(server.url) as channel:
        *_, last = overrun(server, channel)
        assert last.error_message == "client reads responses too slowly: send buffer limit exceeded"


def test_malformed_request_ends_the_stream(server: Running) -> None:
    with grpc.insecure_channel(server.url) as channel:
        start = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        status, _ = refusal(lambda: list(start(iter([b"\xff"]), timeout=WAIT_S)))
    assert status is grpc.StatusCode.INTERNAL


def test_streams_share_one_send_buffer_limit() -> None:
    # The connection holds a part of one response back, the stream the rest: by the number of changes, not by
    # the time between them, the stream needs longest, however busy the machine is.
    send_buffers = SendBufferLimit(1 << 20, now=itertools.count().__next__)
    with running(send_buffers=send_buffers) as server, grpc.insecure_channel(server.url) as channel:
        responses = overrun(server, channel)
        with pytest.raises(grpc.RpcError) as ended:
            list(responses)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ended.value.details() == "client reads responses too slowly: send buffer limit exceeded"
        assert send_buffers.evicted == 1
