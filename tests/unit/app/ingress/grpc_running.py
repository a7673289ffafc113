"""A gRPC front on its own event loop, over a service that the test controls."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from app.core.errors import ErrorCode, InferError, invalid_arg, not_found, unavailable, unsupported
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.ingress.client_memory.registry import SharedMemory
from app.ingress.grpc.front import GrpcFront
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.overview import Overview
from app.routing.table import IDLE, ModelState, NotLoaded, VersionEntry
from app.settings.fronts import GrpcSettings
from tests.unit.app.service_fakes import Insight

WAIT_S = 30.0
UNTIL_IT_ARRIVES = (0.3, 2.0, 20.0)
"""Seconds that a call without an answer is given: on a busy machine the first may pass before it arrives."""


class FakeCall:
    """A request whose responses the test sends."""

    def __init__(self, request: InferRequest, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.cancelled = threading.Event()

    def cancel(self, advice: bool = False) -> None:
        self.cancelled.set()
        self.sink(failed(InferError(ErrorCode.CANCELLED, ""), self.request.id))

    def answer(self, value: Any = None, final: bool = True) -> None:
        outputs = () if value is None else (Tensor.from_array("OUTPUT", np.array([value], np.int32)),)
        self.sink(InferResponse(self.request.model_name, "1", outputs, self.request.id, final=final))


class FakeService(Insight):
    """`echo` answers at once with its input, `held` and `stream` (decoupled) when the test does."""

    def __init__(self) -> None:
        self.calls: queue.Queue[FakeCall] = queue.Queue()
        self.requests: queue.Queue[InferRequest] = queue.Queue()
        self.is_exiting = False
        self.is_ready = True
        self.loads: list[tuple[object, ...]] = []
        self.idle: set[str] = set()
        self.shared_memory = SharedMemory("", enabled=False)

    def live(self) -> Any:
        return True

    def ready(self) -> Any:
        return self.is_ready

    def exiting(self) -> Any:
        return self.is_exiting

    def model_ready(self, name: str, version: str = "") -> Any:
        return self.resolve(name, version).name != "held"

    def server_metadata(self) -> Any:
        return pb.ServerMetadataResponse(name="triton", version="2", extensions=["classification"])

    def model_metadata(self, name: str, version: str = "") -> Any:
        return pb.ModelMetadataResponse(name=name, versions=[version or "1"])

    async def wait_loaded(self, entry: VersionEntry) -> None:
        self.idle.discard(entry.name)
        if entry.name == "unloadable":
            raise unavailable("failed to load 'unloadable'")

    def resolve(self, name: str, version: str = "") -> Any:
        if name in self.idle or name == "unloadable":
            raise NotLoaded(VersionEntry(name, 1, ModelState.READY, IDLE))
        if name == "unknown":
            raise not_found("Request for unknown model: 'unknown' is not found")
        config = mc.ModelConfig(name=name, max_batch_size=8 if name == "echo" else 0)
        config.model_transaction_policy.decoupled = name == "stream"
        labels: dict[str, tuple[str, ...]] = {"OUTPUT": ("zero", "one", "two")}
        return VersionEntry(name, 1, ModelState.READY, config=config.SerializeToString(), labels=labels)

    def served(self) -> list[VersionEntry]:
        return []

    def resolve_single(self, name: str, version: str, endpoint: Any) -> Any:
        entry = self.resolve(name, version)
        if entry.decoupled:
            raise unsupported(f"{endpoint} doesn't support models with decoupled transaction policy")
        return entry

    async def statistics(self, name: str = "", version: str = "") -> Any:
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(name=name, version=version)])

    async def counters(self, name: str, version: str = "") -> Any:
        raise NotImplementedError

    async def overview(self, cursor: str) -> Overview:
        raise NotImplementedError

    async def repository_index(self, ready: bool = False) -> Any:
        state = "READY" if ready else "UNAVAILABLE"
        return pb.RepositoryIndexResponse(models=[{"name": "echo", "version": "1", "state": state}])

    async def load_model(self, name: str, config: Any, files: Any, who: str = "") -> None:
        self.loads.append((name, config, dict(files)))

    async def unload_model(self, name: str, unload_dependents: bool = False, who: str = "") -> None:
        self.loads.append((name, unload_dependents))

    async def register_model(self, name: str, directory: str, who: str = "") -> None:
        raise NotImplementedError

    async def registered_models(self) -> dict[str, str]:
        raise NotImplementedError

    async def rollout(self, name: str) -> Any:
        raise not_found(f"model '{name}' has had no rollout")

    async def change_rollout(self, name: str, change: Any, who: str = "") -> Any:
        return await self.rollout(name)

    async def rollout_history(self, name: str) -> Any:
        return await self.rollout(name)

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Any:
        self.requests.put(request)
        if request.model_name == "broken":
            raise ZeroDivisionError("secret")
        call = FakeCall(request, sink)
        if request.model_name == "echo":
            asyncio.get_running_loop().call_soon(self.echo, request, sink)
        self.calls.put(call)
        return call

    def echo(self, request: InferRequest, sink: Sink) -> Any:
        if request.id == "bad":
            return sink(failed(invalid_arg("bad request"), request.id))
        tensor = request.inputs[0]
        output = Tensor("OUTPUT", tensor.datatype, tensor.shape, tensor.data)
        return sink(InferResponse("echo", "1", (output,), request.id, request.parameters))

    def next_call(self) -> Any:
        return self.calls.get(timeout=WAIT_S)


class Running:
    """A front on an event loop in its own thread."""

    def __init__(
        self,
        settings: GrpcSettings | None = None,
        observer: Any = None,
        send_buffers: SendBufferLimit | None = None,
    ) -> None:
        self.service = FakeService()
        self.front = GrpcFront(self.service, settings or GrpcSettings(), observer, send_buffers)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.url = f"127.0.0.1:{self.on_loop(self.front.start('127.0.0.1', 0))}"

    def on_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def do(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function on the loop."""

        async def call() -> Any:
            return function(*args, **kwargs)

        return self.on_loop(call())

    def close(self) -> None:
        self.on_loop(self.front.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)
        self.loop.close()


@contextmanager
def running(
    settings: GrpcSettings | None = None, send_buffers: SendBufferLimit | None = None
) -> Iterator[Any]:
    server = Running(settings, send_buffers=send_buffers)
    try:
        yield server
    finally:
        server.close()


def int_input(*values: Any) -> Any:
    array = np.array([values], np.int32)
    tensor = client.InferInput("INPUT", array.shape, "INT32")
    tensor.set_data_from_numpy(array)
    return tensor


class Stream:
    """A tritonclient stream whose callback fills a queue."""

    def __init__(self, triton: Any, **options: Any) -> None:
        self.triton = triton
        self.results: queue.Queue[Any] = queue.Queue()
        triton.start_stream(lambda result, error: self.results.put(error or result), **options)

    def send(self, model: str, request_id: str = "", **options: Any) -> None:
        self.triton.async_stream_infer(model, [int_input(5)], request_id=request_id, **options)

    def next(self) -> Any:
        return self.results.get(timeout=WAIT_S)

    def next_values(self, count: int) -> Any:
        return [
            (r.get_response().id, r.as_numpy("OUTPUT").item()) for r in (self.next() for _ in range(count))
        ]


def refusal(call: Any) -> Any:
    with pytest.raises((InferenceServerException, grpc.RpcError)) as caught:
        call()
    error = caught.value
    return (error.status(), error.message()) if hasattr(error, "status") else (error.code(), error.details())
