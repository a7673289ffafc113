"""One instance thread over a backend that does what its test says."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import Failure
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.loops.watchdog import LoopWatchdog
from backends.base import Backend, Instance, Model, Request
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from tests.waiting import until

Behaviour = Callable[[Sequence[Request]], None]


def answer_all(requests: Sequence[Request]) -> None:
    for request in requests:
        request.deliver(InferResponse(id=request.infer.id))


class FakeBackend(Backend):
    """Does what its test says; remembers the threads its functions ran on."""

    def __init__(self, execute: Behaviour, load: Callable[[], None] = lambda: None) -> None:
        self.execute = execute
        self.load = load
        self.calls: list[tuple[str, str]] = []

    eligible = False

    def runs_on_event_loop(self, instance: Instance) -> bool:
        return self.eligible

    def instance_initialize(self, instance: Instance) -> None:
        self.calls.append(("load", threading.current_thread().name))
        self.load()

    def instance_finalize(self, instance: Instance) -> None:
        self.calls.append(("unload", threading.current_thread().name))

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        self.calls.append(("execute", threading.current_thread().name))
        self.execute(requests)


class Bench:
    """One instance thread, and what came out of it."""

    def __init__(self, backend: FakeBackend, decoupled: bool) -> None:
        loop = asyncio.get_running_loop()
        self.responses: dict[str, list[InferResponse]] = {}
        self.finished: list[Batch] = []
        self.following: list[Batch] = []
        """Handed over one by one, each at the end of the one before."""
        self.order: list[str] = []
        self.response_queue = ResponseQueue(loop, self._deliver)
        policy = mc.ModelTransactionPolicy(decoupled=decoupled)
        model = Model(mc.ModelConfig(name="m", model_transaction_policy=policy), 1, Path("m"))
        instance = Instance(model, "m_0_0")
        self.watchdog = LoopWatchdog("m")
        self.thread = InstanceThread(
            backend, instance, self.response_queue, loop, self._finished, self.watchdog
        )

    def _deliver(self, pending: QueuedRequest, response: InferResponse) -> None:
        self.order.append(pending.infer.id)
        self.responses.setdefault(pending.infer.id, []).append(response)

    def _finished(self, thread: InstanceThread, batch: Batch) -> None:
        self.order.append("finished")
        self.finished.append(batch)
        if self.following:
            thread.execute(self.following.pop(0))

    def batch(self, *ids: str, data: object = b"") -> Batch:
        tensor = Tensor("INPUT0", "UINT8", (0,), data)
        requests = [InferRequest("m", "", (tensor,), id=request_id) for request_id in ids]
        pendings = [QueuedRequest(r, lambda response: None, self.response_queue, 1) for r in requests]
        return Batch(pendings, len(pendings))

    async def execute(self, *ids: str) -> Batch:
        batch = self.batch(*ids)
        count = len(self.finished)
        self.thread.execute(batch)
        await until(lambda: len(self.finished) > count)
        return batch

    def final(self, request_id: str) -> InferResponse:
        *others, last = self.responses[request_id]
        assert last.final and not any(response.final for response in others)
        return last

    def error(self, request_id: str) -> Failure:
        error = self.final(request_id).failure
        assert error is not None
        return error


Start = Callable[..., Bench]


@asynccontextmanager
async def benches() -> AsyncIterator[Start]:
    """Yield what starts benches; their threads end behind it."""
    started: list[Bench] = []

    def start(backend: FakeBackend, decoupled: bool = False, setting: str = "true") -> Bench:
        bench = Bench(backend, decoupled)
        bench.thread.instance.model.backend_config["event-loop"] = setting
        started.append(bench)
        bench.thread.start()
        bench.thread.wait_loaded()
        return bench

    yield start
    for bench in started:
        await asyncio.to_thread(bench.thread.stop, 5)
        assert not bench.thread.alive
