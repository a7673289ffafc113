"""Instance threads over small backends: whatever a backend does, each request has one final answer."""

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Sequence

import pytest

from app.core.errors import ErrorCode, FailureReason, InferError, invalid_arg
from app.core.tensors import InferResponse
from backends.base import Request
from deployments.execution.queued_request import QueuedRequest
from tests.unit.deployments.execution.instance_bench import (
    Behaviour,
    Bench,
    FakeBackend,
    Start,
    answer_all,
    benches,
)
from tests.waiting import until


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with benches() as start:
        yield lambda execute, decoupled=False: start(FakeBackend(execute), decoupled)


async def test_instance_lives_on_one_thread() -> None:
    backend = FakeBackend(answer_all)
    bench = Bench(backend, decoupled=False)
    bench.thread.start()
    bench.thread.wait_loaded()
    assert bench.thread.alive
    batch = await bench.execute("a", "b")
    await asyncio.to_thread(bench.thread.stop, 5)
    assert not bench.thread.alive
    assert backend.calls == [("load", "m_0_0"), ("execute", "m_0_0"), ("unload", "m_0_0")]
    assert 0 < batch.start_ns <= batch.infer_start_ns <= batch.infer_end_ns <= batch.end_ns


async def test_responses_are_delivered_before_the_end_of_their_batch(start: Start) -> None:
    bench = start(answer_all)
    await bench.execute("a", "b")
    assert bench.order == ["a", "b", "finished"]


async def test_backend_may_report_its_compute_times(start: Start) -> None:
    def execute(requests: Sequence[Request]) -> None:
        instance.compute_start_ns, instance.compute_end_ns = 7, 9
        answer_all(requests)

    bench = start(execute)
    instance = bench.thread.instance
    batch = await bench.execute("a")
    assert (batch.infer_start_ns, batch.infer_end_ns) == (7, 9)
    bench.thread._backend.execute = answer_all  # type: ignore[attr-defined]
    batch = await bench.execute("b")
    assert (batch.infer_start_ns, batch.infer_end_ns) == (batch.start_ns, batch.end_ns)


async def test_failed_load() -> None:
    def load() -> None:
        raise invalid_arg("no such file")

    backend = FakeBackend(answer_all, load)
    bench = Bench(backend, decoupled=False)
    bench.thread.start()
    with pytest.raises(InferError, match="no such file"):
        bench.thread.wait_loaded()
    await asyncio.to_thread(bench.thread.stop, 5)
    assert not bench.thread.alive
    assert backend.calls == [("load", "m_0_0")]


def exits(requests: Sequence[Request]) -> None:
    sys.exit("enough")


def breaks(requests: Sequence[Request]) -> None:
    raise ValueError("it broke")


def breaks_silently(requests: Sequence[Request]) -> None:
    raise ValueError


def refuses(requests: Sequence[Request]) -> None:
    raise invalid_arg("a bad input")


FAILURES = [
    (breaks, ErrorCode.INTERNAL, "it broke"),
    (breaks_silently, ErrorCode.INTERNAL, "ValueError()"),
    (refuses, ErrorCode.INVALID_ARG, "a bad input"),
    (exits, ErrorCode.INTERNAL, "enough"),
]


@pytest.mark.parametrize(("execute", "code", "text"), FAILURES)
async def test_error_fails_its_own_batch_only(
    start: Start, execute: Behaviour, code: ErrorCode, text: str
) -> None:
    bench = start(
        lambda requests: execute(requests) if requests[0].infer.id == "bad" else answer_all(requests)
    )
    await bench.execute("a")
    await bench.execute("bad", "too")
    await bench.execute("b")
    for request_id in ("bad", "too"):
        error = bench.error(request_id)
        assert (error.code, error.message, error.reason) == (code, text, FailureReason.BACKEND)
    assert bench.final("a").failure is None and bench.final("b").failure is None


async def test_error_after_some_responses_fails_the_rest(start: Start) -> None:
    def execute(requests: Sequence[Request]) -> None:
        answer_all(requests[:1])
        raise ValueError("it broke")

    bench = start(execute)
    batch = await bench.execute("a", "b")
    assert bench.final("a").failure is None
    assert bench.error("b").message == "it broke"
    assert [pending.failed for pending in batch.requests] == [False, True]


async def test_second_response_fails_the_rest_of_the_batch(start: Start) -> None:
    def execute(requests: Sequence[Request]) -> None:
        answer_all(requests[:1])
        answer_all(requests)

    bench = start(execute)
    await bench.execute("a", "b")
    assert bench.final("a").failure is None
    assert bench.error("b").message == "Unable to send response. Response sender has been closed."


async def test_unanswered_request_gets_an_error(start: Start) -> None:
    bench = start(lambda requests: answer_all(requests[1:]))
    await bench.execute("a", "b")
    expected = "model instance 'm_0_0' returned without a response for this request"
    assert (bench.error("a").code, bench.error("a").message) == (ErrorCode.INTERNAL, expected)
    assert bench.final("b").failure is None


async def test_detached_request_is_answered_later_from_another_thread(start: Start) -> None:
    kept: list[Request] = []

    def execute(requests: Sequence[Request]) -> None:
        for request in requests:
            request.detached = True
        kept.extend(requests)

    bench = start(execute)
    await bench.execute("a")
    assert bench.responses == {}
    await asyncio.to_thread(answer_all, kept)
    await until(lambda: "a" in bench.responses)
    assert bench.final("a").failure is None


async def test_rescheduled_request_gets_an_error(start: Start) -> None:
    """No scheduler executes it again yet; without an answer its client would wait for ever."""

    def execute(requests: Sequence[Request]) -> None:
        requests[0].rescheduled = True

    bench = start(execute)
    await bench.execute("a")
    text = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"
    assert bench.error("a").message.startswith(text)


async def test_decoupled_responses_come_from_other_threads(start: Start) -> None:
    def stream(request: Request) -> None:
        for number in range(100):
            request.deliver(InferResponse(id=str(number), final=False))
        request.deliver(InferResponse())

    def execute(requests: Sequence[Request]) -> None:
        for request in requests:
            threading.Thread(target=stream, args=(request,)).start()

    bench = start(execute, decoupled=True)
    await bench.execute("a", "b", "c")
    await until(lambda: all(len(bench.responses.get(i, ())) == 101 for i in "abc"))
    for request_id in "abc":
        assert bench.final(request_id).failure is None
        assert [r.id for r in bench.responses[request_id][:-1]] == [str(n) for n in range(100)]


async def test_decoupled_response_does_not_wait_for_the_execution(start: Start) -> None:
    go_on = threading.Event()

    def execute(requests: Sequence[Request]) -> None:
        requests[0].deliver(InferResponse(final=False))
        assert go_on.wait(60)
        answer_all(requests)

    bench = start(execute, decoupled=True)
    bench.thread.execute(bench.batch("a"))
    await until(lambda: "a" in bench.responses)
    assert bench.finished == []
    go_on.set()
    await until(lambda: len(bench.finished) == 1)


@pytest.mark.parametrize("execute", [answer_all, refuses])
async def test_tensors_are_released_after_the_batch(start: Start, execute: Behaviour) -> None:
    class Data(bytearray):
        """Bytes that can be watched."""

    bench = start(execute)
    data = Data(8)
    watched = weakref.ref(data)
    bench.thread.execute(bench.batch("a", data=data))
    del data
    await until(lambda: len(bench.finished) == 1)
    bench.finished.clear()
    gc.collect()
    assert watched() is None


async def test_undeliverable_response_does_not_block_others(start: Start) -> None:
    bench = start(answer_all)
    deliver = bench._deliver

    def failing(pending: QueuedRequest, response: InferResponse) -> None:
        if pending.infer.id == "a":
            raise RuntimeError("the connection is in no state for this")
        deliver(pending, response)

    bench.response_queue.deliver = failing
    await bench.execute("a", "b")
    assert bench.final("b").failure is None
    assert len(bench.finished) == 1
