"""Requests, and instances that a test releases by hand."""

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from app.core.errors import ErrorCode, Failure
from app.core.tensors import InferRequest, InferResponse, Tensor
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.scheduling.base import Scheduler
from deployments.scheduling.dynamic.serve_batch import Execute, Item

MS = 1_000_000
"""Nanoseconds."""


class Answers:
    """Stands for the response queue and the sinks: final responses by request id."""

    def __init__(self) -> None:
        self.finals: dict[str, InferResponse] = {}

    def put(self, pending: QueuedRequest, response: InferResponse) -> None:
        if response.final:
            assert pending.infer.id not in self.finals, "a second final response"
            self.finals[pending.infer.id] = response

    def code(self, request_id: str) -> ErrorCode | None:
        return self.failure(request_id).code if self.finals[request_id].failure else None

    def failure(self, request_id: str) -> Failure:
        failure = self.finals[request_id].failure
        assert failure is not None
        return failure


def infer_request(request_id: str, nbytes: int = 4, deadline: float = 0.0) -> InferRequest:
    tensor = Tensor("INPUT0", "UINT8", (1, nbytes), bytes(nbytes))
    return InferRequest("m", "", (tensor,), id=request_id, deadline=deadline)


def pending(
    answers: Answers,
    request_id: str,
    rows: int = 1,
    shapes: tuple[object, ...] | None = None,
    nbytes: int = 4,
    deadline: float = 0.0,
) -> QueuedRequest:
    infer = infer_request(request_id, nbytes, deadline)
    made = QueuedRequest(infer, lambda response: None, cast(ResponseQueue, answers), rows)
    made.shapes = shapes
    return made


class HeldInstance:
    """An instance whose executions end when the test says so."""

    executes_on_loop = False
    accepts_prefetch = False
    may_wait = False

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None
        self.running: Batch | None = None
        self.ids: list[list[str]] = []
        self.batches: list[Batch] = []

    def execute_at_once(self, batch: Batch) -> None:
        self.execute(batch)

    def execute(self, batch: Batch) -> None:
        assert self.running is None, "a second batch before the first was over"
        self.running = batch
        self.batches.append(batch)
        self.ids.append([pending.infer.id for pending in batch.requests])

    def finish(self, failing: Sequence[str] = (), took_ns: int = 3000) -> Batch:
        """End the execution: a third of its time each for input, inference and output."""
        batch, self.running = self.running, None
        assert batch is not None, "nothing is executing"
        failure = Failure(ErrorCode.INTERNAL, "it broke")
        for pending in batch.requests:
            pending.deliver(InferResponse(failure=failure if pending.infer.id in failing else None))
        batch.start_ns = 1000
        batch.infer_start_ns = batch.start_ns + took_ns // 3
        batch.infer_end_ns = batch.start_ns + 2 * took_ns // 3
        batch.end_ns = batch.start_ns + took_ns
        assert self.scheduler is not None
        self.scheduler.finished(cast(InstanceThread, self), batch)
        return batch


def offer(scheduler: Scheduler, count: int = 1) -> list[HeldInstance]:
    instances = [HeldInstance() for _ in range(count)]
    for instance in instances:
        instance.scheduler = scheduler
        scheduler.add_instance(cast(InstanceThread, instance))
    return instances


class FakeServeBatch:
    """Calls the executor with each item alone; remembers the sizes, and may refuse."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.error: Exception | None = None
        self.limits: tuple[int, int] = (0, 0)

    def __call__(self, execute: Execute, max_rows: int, concurrent: int) -> Callable[[Item], Awaitable[None]]:
        self.limits = (max_rows, concurrent)

        async def batched(item: Item) -> None:
            if self.error is not None:
                raise self.error
            self.rows.append(item[1].rows)
            await execute([item])

        return batched
