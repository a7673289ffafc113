"""Executions that wait for answers of other models: they hold no loop up."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.normalise import normalise
from app.core.errors import InferError
from app.core.tensors import InferResponse
from app.routing.handle_calls import HandleCalls
from app.transport.event_loop_thread import LoopThread
from backends.base import Instance, Request
from backends.python.api import server_api
from backends.python.event_loop import EventLoop
from deployments.bls.inline_loop import InlineEventLoop
from deployments.bls.service import Connection, ModelCalls
from deployments.bls.suspension import ResponseFuture, run_suspendable, waited
from deployments.execution import instance_thread
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from tests.unit.deployments.bls.test_service import SPEC, output, request
from tests.unit.deployments.bls.test_service import Bench as Plane
from tests.unit.deployments.bls.test_service import bench as bench
from tests.unit.deployments.execution.test_instance_thread import Bench, FakeBackend, until
from tests.unit.ensembles import Asked, Models, model
from tests.unit.scheduling_fakes import FakeServeBatch


def test_a_thread_waits_until_the_answer_is_given() -> None:
    answer = ResponseFuture[InferResponse]()
    threading.Timer(0.01, answer.give, [InferResponse(id="x")]).start()
    before = waited.ns
    assert answer.wait().id == "x"
    assert waited.ns > before


async def test_the_loop_goes_on_while_an_execution_waits() -> None:
    answers: list[ResponseFuture[InferResponse]] = []
    seen: list[Any] = []

    def execute(count: int) -> None:
        for _ in range(count):
            answers.append(ResponseFuture())
            seen.append((answers[-1].wait().id, threading.get_ident()))

    run_suspendable(execute, 2)
    for name in ("first", "second"):
        await asyncio.sleep(0)
        answers[-1].give(InferResponse(id=name))
    assert seen == [("first", threading.get_ident()), ("second", threading.get_ident())]


async def test_an_answer_that_is_there_already_costs_no_wait() -> None:
    seen: list[str] = []

    def execute() -> None:
        answer = ResponseFuture[InferResponse]()
        answer.give(InferResponse(id="x"))
        seen.append(answer.wait().id)

    run_suspendable(execute)
    assert seen == ["x"]


class CallingBackend(FakeBackend):
    """Calls model "m" in each execution."""

    portable = True

    def __init__(self) -> None:
        super().__init__(self._call)
        self.found: list[Any] = []

    def instance_pauses(self, instance: Instance) -> bool:
        return True

    def _call(self, requests: Sequence[Request]) -> None:
        self.found.append(request("m").exec())
        for each in requests:
            each.reply(InferResponse(id=each.infer.id))


class Calling:
    """An instance on this loop, and the model that it calls."""

    def __init__(self) -> None:
        self.models = Models(m=model())
        self.backend = CallingBackend()
        self.bench = Bench(self.backend, decoupled=False)

    async def asked(self) -> Asked:
        await until(lambda: bool(self.models.asked))
        return self.models.asked.pop(0)

    async def execute(self, name: str) -> None:
        finished = len(self.bench.finished)
        self.bench.thread.execute(self.bench.batch(name))
        (await self.asked()).answer(output())
        await until(lambda: len(self.bench.finished) > finished)

    def thread(self) -> str:
        """Which the last execution took place on."""
        return self.backend.calls[-1][1]


@pytest.fixture
async def calling(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Calling]:
    made = Calling()
    plane = LoopThread.__new__(LoopThread)  # around the loop that the test runs on
    plane.loop, plane._thread = asyncio.get_running_loop(), threading.current_thread()
    calls = ModelCalls(SPEC, plane)

    async def open_connection(spec: Any) -> Connection:
        return Connection(cast(Any, made.models), cast(Any, None))

    monkeypatch.setattr(Connection, "open", open_connection)
    monkeypatch.setattr(server_api._Installed, "services", calls)
    # Whatever the machine.
    monkeypatch.setattr(instance_thread, "_SHORT_NS", 10**12)
    monkeypatch.setattr(instance_thread, "_LONG_NS", 10**12)
    made.bench.thread.start()
    made.bench.thread.wait_loaded()
    yield made
    await asyncio.to_thread(made.bench.thread.stop, 5)


async def move_to_the_loop(calling: Calling) -> None:
    for i in range(instance_thread._SHORT_RUNS):
        await calling.execute(str(i))
        assert calling.thread() == "m_0_0"
    assert calling.bench.thread.on_loop


async def test_one_of_several_that_call_keeps_to_its_thread(calling: Calling) -> None:
    """On one loop they would wait within each other, and each count the others' waiting as its own."""
    calling.bench.thread.alone = False
    for i in range(instance_thread._SHORT_RUNS + 2):
        await calling.execute(str(i))
        assert calling.thread() == "m_0_0"


async def test_calls_of_an_execution_on_the_loop(calling: Calling) -> None:
    await move_to_the_loop(calling)
    await calling.execute("here")
    assert calling.thread() == threading.current_thread().name
    assert calling.bench.final("here").failure is None
    assert not any(found.has_error() for found in calling.backend.found)


async def test_a_call_that_cannot_be_made_on_the_loop(calling: Calling) -> None:
    await move_to_the_loop(calling)
    calling.models.table = type(calling.models.table)()
    await calling.bench.execute("here")
    assert "Model 'm' is not ready" in calling.backend.found[-1].error().message()


async def test_others_are_answered_while_an_execution_waits(calling: Calling) -> None:
    """What is put into the outbox meanwhile does not wait for it."""
    await move_to_the_loop(calling)
    bench = calling.bench
    bench.thread.execute(bench.batch("waits"))
    asked = await calling.asked()
    bench.batch("other").requests[0].reply(InferResponse(id="other"))
    await until(lambda: "other" in bench.responses)
    assert "waits" not in bench.responses
    asked.answer(output())
    await until(lambda: "waits" in bench.responses)


async def test_waiting_is_not_what_makes_an_execution_long(
    calling: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: list[int] = []
    monkeypatch.setattr(calling.bench.thread, "_count_run", busy.append)
    bench = calling.bench
    bench.thread.execute(bench.batch("waits"))
    asked = await calling.asked()
    await asyncio.sleep(0.05)
    asked.answer(output())
    await until(lambda: bool(bench.finished))
    batch = bench.finished[-1]
    assert batch.end_ns - batch.start_ns - busy[0] >= 50_000_000


async def test_stopping_waits_for_an_execution_that_waits(calling: Calling) -> None:
    await move_to_the_loop(calling)
    bench = calling.bench
    bench.thread.execute(bench.batch("waits"))
    asked = await calling.asked()
    stopping = asyncio.create_task(asyncio.to_thread(bench.thread.stop, 5))
    await asyncio.sleep(0.01)
    assert bench.thread.alive
    asked.answer(output())
    await stopping
    assert not bench.thread.alive
    assert bench.final("waits").failure is None


CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        (tensor,) = request.inputs()
        for _ in range(2):
            call = pb_utils.InferenceRequest(
                model_name="m",
                inputs=[pb_utils.Tensor("x", tensor.as_numpy())],
                requested_output_names=["y"],
            )
            response = call.exec()
            if response.has_error():
                return response
            tensor = pb_utils.get_output_tensor_by_name(response, "y")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())])
"""
AWAITING = (
    CALLER.replace("def ", "async def ")
    .replace("self._respond", "await self._respond")
    .replace("call.exec()", "await call.async_exec()")
)
GATHERING = AWAITING.replace(
    "await call.async_exec()", "(await asyncio.gather(call.async_exec(), call.async_exec()))[1]"
).replace("import", "import asyncio\nimport", 1)
CALLER_CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""


def answer_with(fill: int) -> Callable[[Asked], None]:
    return lambda asked: asked.answer(output(fill))


async def served_caller(bench: Plane, directory: Path, source: str) -> ServedModel:
    (directory / "1").mkdir()
    (directory / "1" / "model.py").write_text(source)
    config = normalise(text_format.Parse(CALLER_CONFIG, mc.ModelConfig(name="caller")))
    spec = msgspec.structs.replace(SPEC, directory=str(directory), config=config.SerializeToString())
    served = await asyncio.to_thread(load_model, spec, bench.plane, FakeServeBatch())
    await bench.plane.run(served.open())
    return served


@pytest.mark.parametrize(("source", "calls"), [(CALLER, 2), (AWAITING, 2), (GATHERING, 4)])
async def test_a_python_model_that_calls_moves_to_the_loop(
    bench: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, calls: int
) -> None:
    monkeypatch.setattr(instance_thread, "_SHORT_NS", 10**12)
    monkeypatch.setattr(instance_thread, "_LONG_NS", 10**12)
    served = await served_caller(bench, tmp_path, source)
    handle = HandleCalls(served.config, served.submit, bench.plane)
    thread = served.instances._placed[0].thread
    for i in range(instance_thread._SHORT_RUNS + 3):
        assert thread.on_loop == (i >= instance_thread._SHORT_RUNS)
        bench.answers += [*(answer_with(0) for _ in range(calls - 1)), answer_with(i)]
        found = await handle.call({"IN": np.ones(4, np.float32)})
        assert isinstance(found, dict) and found["OUT"].tolist() == [i] * 4
    await asyncio.to_thread(served.close, 5)


@pytest.mark.parametrize("error", ["ValueError('odd')", "SystemExit('odd')"])
async def test_a_coroutine_that_fails_on_the_loop(
    bench: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """Before its call, and after it."""
    monkeypatch.setattr(instance_thread, "_SHORT_NS", 10**12)
    monkeypatch.setattr(instance_thread, "_LONG_NS", 10**12)
    failing = f"if np.array_equal(tensor.as_numpy(), [{{}}] * 4): raise {error}\n"
    source = AWAITING.replace("import", "import numpy as np\nimport", 1)
    source = source.replace("for _ in", f"{failing.format(5)}        for _ in")
    source = source.replace("return pb_utils", f"{failing.format(6)}        return pb_utils")
    served = await served_caller(bench, tmp_path, source)
    handle = HandleCalls(served.config, served.submit, bench.plane)
    for _ in range(instance_thread._SHORT_RUNS):
        bench.answers += [answer_with(0), answer_with(1)]
        await handle.call({"IN": np.ones(4, np.float32)})
    with pytest.raises(InferError, match="odd"):
        await handle.call({"IN": np.full(4, 5, np.float32)})
    bench.answers += [answer_with(0), answer_with(6)]
    with pytest.raises(InferError, match="odd"):
        await handle.call({"IN": np.ones(4, np.float32)})
    assert served.instances._placed[0].thread.on_loop and bench.plane.alive
    await asyncio.to_thread(served.close, 5)


async def test_what_a_coroutine_computes_is_no_waiting() -> None:
    loop = InlineEventLoop(asyncio.get_running_loop())
    given: list[asyncio.Future[None]] = []
    ended: list[int] = []

    async def compute() -> int:
        given.append(asyncio.get_running_loop().create_future())
        await given[0]
        end = time.monotonic_ns() + 20_000_000
        while time.monotonic_ns() < end:
            pass
        return 7

    before, began = waited.ns, time.monotonic_ns()
    run_suspendable(lambda: ended.append(loop.run(compute())))
    assert not ended and asyncio.get_running_loop() is not given[0].get_loop()
    loop.call_soon_threadsafe(given[0].set_result, None)
    assert ended == [7]
    assert time.monotonic_ns() - began - (waited.ns - before) >= 20_000_000


@pytest.mark.parametrize("computes", [False, True])
def test_what_a_coroutine_waits_on_its_thread_is_no_computing(computes: bool) -> None:
    calls, loop = ModelCalls(SPEC, LoopThread.__new__(LoopThread)), EventLoop("m asyncio")

    async def execute() -> int:
        end = time.thread_time_ns() + 50_000_000
        while computes and time.thread_time_ns() < end:
            pass
        await asyncio.sleep(0 if computes else 0.05)
        return 7

    before, began = waited.ns, time.monotonic_ns()
    assert calls.run(execute(), loop) == 7
    took, waiting = time.monotonic_ns() - began, waited.ns - before
    assert took - waiting >= 50_000_000 if computes else waiting >= 40_000_000
    loop.close()
