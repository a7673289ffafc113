"""The gRPC front over a real connection: tritonclient on one side, a scripted service on the other."""

import asyncio
import queue
import threading
import time
from contextlib import contextmanager

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
import tritonclient.grpc.aio as aio_client
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from app.core.errors import ErrorCode, InferError, invalid_arg, not_found, unsupported
from app.core.tensors import InferResponse, Tensor, failed
from app.ingress.grpc_front import SHUTDOWN_TEXT, GrpcFront, GrpcSettings
from app.ingress.grpc_stream import StreamLimits

pytestmark = pytest.mark.usefixtures("either_grpc_front")

WAIT_S = 10.0


class FakeCall:
    """A request whose responses the test decides."""

    def __init__(self, request, sink):
        self.request = request
        self.sink = sink
        self.cancelled = threading.Event()

    def cancel(self):
        self.cancelled.set()
        self.sink(failed(InferError(ErrorCode.CANCELLED, ""), self.request.id))

    def answer(self, value=None, final=True):
        outputs = () if value is None else (Tensor.of("OUTPUT", np.array([value], np.int32)),)
        self.sink(InferResponse(self.request.model_name, "1", outputs, self.request.id, final=final))


class FakeService:
    """`echo` answers at once with its input, `held` and `stream` (decoupled) when the test says so."""

    def __init__(self):
        self.calls = queue.Queue()
        self.requests = queue.Queue()
        self.is_exiting = False
        self.is_ready = True
        self.loads = []

    def live(self):
        return True

    def ready(self):
        return self.is_ready

    def exiting(self):
        return self.is_exiting

    def model_ready(self, name, version=""):
        return self.model_config(name, version).name != "held"

    def server_metadata(self):
        return pb.ServerMetadataResponse(name="triton", version="2", extensions=["classification"])

    def model_metadata(self, name, version=""):
        return pb.ModelMetadataResponse(name=name, versions=[version or "1"])

    def model_config(self, name, version=""):
        if name == "unknown":
            raise not_found("Request for unknown model: 'unknown' is not found")
        config = mc.ModelConfig(name=name, max_batch_size=8 if name == "echo" else 0)
        config.model_transaction_policy.decoupled = name == "stream"
        return config

    def labels(self, name, version, output):
        return ("zero", "one", "two")

    async def statistics(self, name="", version=""):
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(name=name, version=version)])

    async def repository_index(self, ready=False):
        state = "READY" if ready else "UNAVAILABLE"
        return pb.RepositoryIndexResponse(models=[{"name": "echo", "version": "1", "state": state}])

    async def load_model(self, name, config, files):
        self.loads.append((name, config, dict(files)))

    async def unload_model(self, name, unload_dependents=False):
        self.loads.append((name, unload_dependents))

    def submit(self, request, sink):
        self.requests.put(request)
        if request.model_name == "broken":
            raise ZeroDivisionError("secret")
        self.model_config(request.model_name)
        call = FakeCall(request, sink)
        if request.model_name == "echo":
            asyncio.get_running_loop().call_soon(self.echo, request, sink)
        self.calls.put(call)
        return call

    def echo(self, request, sink):
        if request.id == "bad":
            return sink(failed(invalid_arg("bad request"), request.id))
        tensor = request.inputs[0]
        output = Tensor("OUTPUT", tensor.datatype, tensor.shape, tensor.data)
        return sink(InferResponse("echo", "1", (output,), request.id, request.parameters))

    async def infer(self, request):
        if request.model_name == "stream":
            raise unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
        done = asyncio.get_running_loop().create_future()
        call = self.submit(request, lambda response: done.cancelled() or done.set_result(response))
        try:
            response = await done
        except asyncio.CancelledError:
            call.cancel()
            raise
        if response.error is not None:
            raise response.error
        return response

    def next_call(self):
        return self.calls.get(timeout=WAIT_S)


class Running:
    """A front on an event loop in a thread of its own."""

    def __init__(self, settings=None, observer=None):
        self.service = FakeService()
        self.front = GrpcFront(self.service, settings, observer)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.url = f"127.0.0.1:{self.on_loop(self.front.start('127.0.0.1', 0))}"

    def on_loop(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def do(self, function, *args, **kwargs):
        """Call a function on the loop."""

        async def call():
            return function(*args, **kwargs)

        return self.on_loop(call())

    def close(self):
        self.on_loop(self.front.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)
        self.loop.close()


@contextmanager
def running(settings=None):
    server = Running(settings)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server():
    with running() as server:
        yield server


@pytest.fixture
def triton(server):
    with client.InferenceServerClient(server.url) as triton:
        yield triton


def int_input(*values):
    array = np.array([values], np.int32)
    tensor = client.InferInput("INPUT", array.shape, "INT32")
    tensor.set_data_from_numpy(array)
    return tensor


class Stream:
    """A tritonclient stream whose callback fills a queue."""

    def __init__(self, triton, **options):
        self.triton = triton
        self.results = queue.Queue()
        triton.start_stream(lambda result, error: self.results.put(error or result), **options)

    def send(self, model, request_id="", **options):
        self.triton.async_stream_infer(model, [int_input(5)], request_id=request_id, **options)

    def next(self):
        return self.results.get(timeout=WAIT_S)

    def next_values(self, count):
        return [
            (r.get_response().id, r.as_numpy("OUTPUT").item()) for r in (self.next() for _ in range(count))
        ]


def refusal(call):
    with pytest.raises((InferenceServerException, grpc.RpcError)) as caught:
        call()
    error = caught.value
    return (error.status(), error.message()) if hasattr(error, "status") else (error.code(), error.details())


def test_health(server, triton):
    assert triton.is_server_live() and triton.is_server_ready()
    assert triton.is_model_ready("echo") and not triton.is_model_ready("held")
    assert refusal(lambda: triton.is_model_ready("unknown")) == (
        "StatusCode.NOT_FOUND",
        "Request for unknown model: 'unknown' is not found",
    )


@pytest.mark.parametrize(("ready", "status"), [(True, b"\x08\x01"), (False, b"\x08\x02")])
def test_grpc_health(server, ready, status):
    server.service.is_ready = ready
    with grpc.insecure_channel(server.url) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"\x0a\x07service", timeout=WAIT_S) == status


def test_descriptions(triton):
    assert triton.get_server_metadata().extensions == ["classification"]
    assert triton.get_model_metadata("echo", "2").versions == ["2"]
    assert triton.get_model_config("stream").config.model_transaction_policy.decoupled
    assert triton.get_inference_statistics("echo").model_stats[0].name == "echo"
    assert triton.get_model_repository_index().models[0].state == "UNAVAILABLE"


def test_repository(server, triton):
    triton.load_model("m", config="{}", files={"file:1/model.x": b"\0"})
    triton.unload_model("m", unload_dependents=True)
    assert server.service.loads == [("m", "{}", {"1/model.x": b"\0"}), ("m", True)]


def test_unknown_methods_are_unimplemented(server):
    with grpc.insecure_channel(server.url) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"", timeout=WAIT_S)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_infer(server, triton):
    result = triton.infer("echo", [int_input(1, 2)], request_id="7", priority=2, parameters={"p": "v"})
    assert result.as_numpy("OUTPUT").tolist() == [[1, 2]]
    assert (result.get_response().id, result.get_response().parameters["p"].string_param) == ("7", "v")
    request = server.service.requests.get(timeout=WAIT_S)
    assert (request.priority, request.deadline) == (2, 0.0)


def test_infer_with_the_aio_client(server):
    async def infer():
        async with aio_client.InferenceServerClient(server.url) as triton:
            return await triton.infer("echo", [int_input(3)])

    assert asyncio.run(infer()).as_numpy("OUTPUT").tolist() == [[3]]


def test_infer_of_a_large_tensor(triton):
    array = np.arange(5_000_000, dtype=np.float32).reshape(1, -1)
    tensor = client.InferInput("INPUT", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    assert np.array_equal(triton.infer("echo", [tensor]).as_numpy("OUTPUT"), array)


def test_classification(triton):
    output = client.InferRequestedOutput("OUTPUT", class_count=2)
    result = triton.infer("echo", [int_input(4, 9, 6)], outputs=[output])
    assert result.as_numpy("OUTPUT").tolist() == [[b"9:1:one", b"6:2:two"]]


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
def test_errors_have_status_and_text(triton, model, request_id, status, text):
    call = lambda: triton.infer(model, [int_input(1)], request_id=request_id)  # noqa: E731
    assert refusal(call) == (f"StatusCode.{status}", text)
    assert triton.infer("echo", [int_input(1)]).as_numpy("OUTPUT").tolist() == [[1]]


def test_bytes_that_are_no_message(server):
    with grpc.insecure_channel(server.url) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        status, _ = refusal(lambda: infer(b"\xff", timeout=WAIT_S))
    assert status is grpc.StatusCode.INTERNAL


def test_client_deadline_reaches_the_service_and_cancels(server, triton):
    before = time.monotonic()
    with pytest.raises(InferenceServerException):
        triton.infer("held", [int_input(1)], client_timeout=0.3)
    deadline = server.service.requests.get(timeout=WAIT_S).deadline
    assert before < deadline < before + 2.0
    assert server.service.next_call().cancelled.wait(WAIT_S)


def test_client_cancellation_reaches_the_call(server, triton):
    pending = triton.async_infer("held", [int_input(1)], lambda result, error: None)
    call = server.service.next_call()
    pending.cancel()
    assert call.cancelled.wait(WAIT_S)


def test_disconnect_cancels(server):
    triton = client.InferenceServerClient(server.url)
    triton.async_infer("held", [int_input(1)], lambda result, error: None)
    call = server.service.next_call()
    triton.close()
    assert call.cancelled.wait(WAIT_S)


def test_cancelled_request_has_status_and_no_text(server, triton):
    results = queue.Queue()
    triton.async_infer("held", [int_input(1)], lambda result, error: results.put(error))
    server.do(server.service.next_call().cancel)
    error = results.get(timeout=WAIT_S)
    assert (error.status(), error.message()) == ("StatusCode.CANCELLED", "")


def test_shutdown_refuses_requests(server, triton):
    server.service.is_exiting = True
    assert refusal(lambda: triton.infer("echo", [int_input(1)])) == ("StatusCode.UNAVAILABLE", SHUTDOWN_TEXT)
    stream = Stream(triton)
    stream.send("echo", "1")
    assert stream.next().message() == SHUTDOWN_TEXT


def test_stop_lets_requests_finish_and_ends_streams(server, triton):
    results = queue.Queue()
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


def test_stream_keeps_the_order_of_ordinary_requests(server, triton):
    stream = Stream(triton)
    for request_id in "123":
        stream.send("held", request_id)
    calls = [server.service.next_call() for _ in range(3)]
    for value in (2, 1, 0):
        server.do(calls[value].answer, value)
    assert stream.next_values(3) == [("1", 0), ("2", 1), ("3", 2)]


def test_stream_interleaves_decoupled_responses(server, triton):
    stream = Stream(triton)
    for model, request_id in (("held", "h"), ("stream", "a"), ("stream", "b")):
        stream.send(model, request_id)
    held, first, second = (server.service.next_call() for _ in range(3))
    for call, value, final in ((first, 1, False), (second, 2, True), (first, 3, True), (held, 4, True)):
        server.do(call.answer, value, final=final)
    results = [stream.next().get_response() for _ in range(4)]
    assert [r.id for r in results] == ["a", "b", "a", "h"]
    assert [r.parameters["triton_final_response"].bool_param for r in results] == [False, True, True, True]


@pytest.mark.parametrize("wanted", [False, True])
def test_empty_final_response_is_sent_on_demand(server, triton, wanted):
    stream = Stream(triton)
    stream.send("stream", "s", enable_empty_final_response=wanted)
    server.do(server.service.next_call().answer)
    stream.send("echo", "e")
    if wanted:
        empty = stream.next().get_response()
        assert (empty.id, empty.model_name, empty.model_version) == ("s", "stream", "")
        assert empty.parameters["triton_final_response"].bool_param and not empty.outputs
    assert stream.next_values(1) == [("e", 5)]


def test_stream_errors_are_in_band_and_in_order(server, triton):
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


def test_stream_of_fail_fast_client_ends_with_the_status(server, triton):
    stream = Stream(triton, headers={"triton_grpc_error": "true"})
    stream.send("held", "1")
    held = server.service.next_call()
    stream.send("stream", "2")
    server.do(server.service.next_call().sink, failed(not_found("no such thing"), "2"))
    error = stream.next()
    assert (error.status(), error.message()) == ("StatusCode.NOT_FOUND", "no such thing")
    assert held.cancelled.wait(WAIT_S)


def test_half_close_finishes_what_is_under_way(server, triton):
    stream = Stream(triton)
    stream.send("held", "1")
    call = server.service.next_call()
    closing = threading.Thread(target=triton.stop_stream)
    closing.start()
    server.do(call.answer, 3)
    assert stream.next_values(1) == [("1", 3)]
    closing.join(WAIT_S)
    assert not closing.is_alive() and not call.cancelled.is_set()


def test_cancelled_stream_cancels_its_requests(server, triton):
    stream = Stream(triton)
    stream.send("held", "1")
    stream.send("stream", "2")
    calls = [server.service.next_call() for _ in range(2)]
    triton.stop_stream(cancel_requests=True)
    assert all(call.cancelled.wait(WAIT_S) for call in calls)


def test_reading_pauses_while_the_slots_are_taken():
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


def test_a_decoupled_request_that_overruns_its_reader_is_cancelled(server):
    settings = GrpcSettings(stream=StreamLimits(byte_size=1 << 20))
    with running(settings) as server, grpc.insecure_channel(server.url) as channel:
        start = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer
        sending = queue.SimpleQueue()
        responses = start(iter(sending.get, None))
        message = pb.ModelInferRequest(model_name="stream", id="1")
        sending.put(message)
        call = server.service.next_call()
        chunk = Tensor("OUTPUT", "INT8", (1 << 18,), bytes(1 << 18))
        response = InferResponse("stream", "1", (chunk,), final=False)
        for _ in range(100):
            if call.cancelled.is_set():
                break
            server.do(call.sink, response)
        assert call.cancelled.is_set()
        sending.put(None)
        *_, last = responses
        assert last.error_message == "the stream's responses are read too slowly"


def test_bytes_that_are_no_message_end_the_stream(server):
    with grpc.insecure_channel(server.url) as channel:
        start = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        status, _ = refusal(lambda: list(start(iter([b"\xff"]), timeout=WAIT_S)))
    assert status is grpc.StatusCode.INTERNAL
