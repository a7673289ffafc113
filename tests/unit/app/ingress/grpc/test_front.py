"""The gRPC front over a real connection: tritonclient on one side, a scripted service on the other."""

import asyncio
import queue
import time
from typing import Any

import grpc
import pytest
import tritonclient.grpc as client
from tritonclient.utils import InferenceServerException

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.tensors import failed
from app.ingress.grpc.front import SHUTDOWN_TEXT
from tests.unit.app.ingress.grpc_running import UNTIL_IT_ARRIVES, WAIT_S, Running, Stream, int_input, refusal
from tests.unit.garbage import alive


@pytest.mark.parametrize(("ready", "status"), [(True, b"\x08\x01"), (False, b"\x08\x02")])
def test_grpc_health(server: Running, ready: bool, status: int) -> None:
    server.service.is_ready = ready
    with grpc.insecure_channel(server.url) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"\x0a\x07service", timeout=WAIT_S) == status


def test_repository(server: Running, triton: client.InferenceServerClient) -> None:
    triton.load_model("m", config="{}", files={"file:1/model.x": b"\0"})
    triton.unload_model("m", unload_dependents=True)
    assert server.service.loads == [("m", "{}", {"1/model.x": b"\0"}), ("m", True)]


def test_unknown_methods_are_unimplemented(server: Running) -> None:
    with grpc.insecure_channel(server.url) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"", timeout=WAIT_S)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_failed_requests_leak_nothing(server: Running, triton: client.InferenceServerClient) -> None:
    for _ in range(20):
        code, text = refusal(lambda: triton.infer("echo", [int_input(1)], request_id="bad"))
        assert (code, text) == ("StatusCode.INVALID_ARGUMENT", "bad request")
        server.service.next_call()  # which knows its response
    assert alive(InferError) < 10


@pytest.mark.parametrize(
    ("model", "request_id", "status", "text"),
    [
        ("echo", "bad", "INVALID_ARGUMENT", "bad request"),
        ("unknown", "", "NOT_FOUND", "Request for unknown model: 'unknown' is not found"),
        (
            "stream",
            "",
            "UNIMPLEMENTED",
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
        ("broken", "", "INTERNAL", "the server failed to handle the request; its log has the details"),
    ],
)
def test_errors_have_status_and_text(
    triton: client.InferenceServerClient, model: str, request_id: str, status: int, text: str
) -> None:
    call = lambda: triton.infer(model, [int_input(1)], request_id=request_id)  # noqa: E731
    assert refusal(call) == (f"StatusCode.{status}", text)
    assert triton.infer("echo", [int_input(1)]).as_numpy("OUTPUT").tolist() == [[1]]


def test_malformed_request_is_internal(server: Running) -> None:
    with grpc.insecure_channel(server.url) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        status, _ = refusal(lambda: infer(b"\xff", timeout=WAIT_S))
    assert status is grpc.StatusCode.INTERNAL


def test_client_deadline_reaches_the_service_and_cancels(
    server: Running, triton: client.InferenceServerClient
) -> None:
    for timeout in UNTIL_IT_ARRIVES:
        before = time.monotonic()
        with pytest.raises(InferenceServerException):
            triton.infer("held", [int_input(1)], client_timeout=timeout)
        if not server.service.requests.empty():
            break
    deadline = server.service.requests.get(timeout=WAIT_S).deadline
    assert before < deadline < before + timeout + 2.0
    assert server.service.next_call().cancelled.wait(WAIT_S)


def test_client_cancellation_reaches_the_call(server: Running, triton: client.InferenceServerClient) -> None:
    pending = triton.async_infer("held", [int_input(1)], lambda result, error: None)
    call = server.service.next_call()
    pending.cancel()
    assert call.cancelled.wait(WAIT_S)


def test_disconnect_cancels_requests(server: Running) -> None:
    triton = client.InferenceServerClient(server.url)
    triton.async_infer("held", [int_input(1)], lambda result, error: None)
    call = server.service.next_call()
    triton.close()
    assert call.cancelled.wait(WAIT_S)


def test_cancelled_request_has_status_and_no_text(
    server: Running, triton: client.InferenceServerClient
) -> None:
    results: queue.Queue[Any] = queue.Queue()
    triton.async_infer("held", [int_input(1)], lambda result, error: results.put(error))
    server.do(server.service.next_call().cancel)
    error = results.get(timeout=WAIT_S)
    assert (error.status(), error.message()) == ("StatusCode.CANCELLED", "")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (FailureReason.REJECTED, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (FailureReason.OTHER, grpc.StatusCode.UNAVAILABLE),  # loading: clients may retry by themselves
    ],
)
def test_overloaded_model_is_answered_with_the_time_to_retry(
    server: Running, reason: FailureReason, code: grpc.StatusCode
) -> None:
    request = client.service_pb2.ModelInferRequest(model_name="held")
    with grpc.insecure_channel(server.url) as channel:
        stub = client.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        pending = stub.ModelInfer.future(request, timeout=WAIT_S)
        failure = Failure(ErrorCode.UNAVAILABLE, "busy", reason, retry_after_s=2.345)
        server.do(server.service.next_call().sink, failed(failure))
        error = pending.exception(timeout=WAIT_S)
    assert (error.code(), error.details()) == (code, "busy")
    trailers = dict(error.trailing_metadata())
    assert (trailers["grpc-retry-pushback-ms"], trailers["retry-after"]) == ("2345", "3")


def test_shutdown_refuses_requests(server: Running, triton: client.InferenceServerClient) -> None:
    server.service.is_exiting = True
    assert refusal(lambda: triton.infer("echo", [int_input(1)])) == ("StatusCode.UNAVAILABLE", SHUTDOWN_TEXT)
    stream = Stream(triton)
    stream.send("echo", "1")
    assert stream.next().message() == SHUTDOWN_TEXT


def test_stop_lets_requests_finish_and_ends_streams(
    server: Running, triton: client.InferenceServerClient
) -> None:
    results: queue.Queue[Any] = queue.Queue()
    triton.async_infer("held", [int_input(1)], lambda result, error: results.put(error or result))
    call = server.service.next_call()
    stream = Stream(triton)
    stream.send("echo")
    stream.next()
    stopping = asyncio.run_coroutine_threadsafe(server.front.stop(WAIT_S), server.loop)
    assert stream.next().message() == SHUTDOWN_TEXT
    server.do(call.answer, 4)
    assert results.get(timeout=WAIT_S).as_numpy("OUTPUT").tolist() == [4]
    stopping.result(WAIT_S)
