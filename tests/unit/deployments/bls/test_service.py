"""Calls of a Python model to other models, over a router that is made up."""

import asyncio
from collections.abc import Callable, Iterator
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from app.core.errors import unavailable
from app.core.rollout.split import Split
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.routing.manager_client import LoadRequest
from app.routing.table import RoutingTable
from backends.python.api import calls, pb_utils, server_api
from backends.python.api.calls import ResponseIterator, executing
from backends.python.api.request import InferenceTrace
from backends.python.api.tensor import received_tensor
from deployments.bls.cluster import Cluster
from deployments.bls.service import Connection
from deployments.spec import ModelSpec
from tests.unit.backend_harness import Call
from tests.unit.bls_bench import Bench, open_bench
from tests.unit.ensembles import Asked
from tests.waiting import block_until, let_run


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with open_bench(monkeypatch) as made:
        yield made


def request(name: str = "m", **fields: Any) -> pb_utils.InferenceRequest:
    array = np.arange(4, dtype=np.float32)
    inputs = [pb_utils.Tensor("x", array)]
    return pb_utils.InferenceRequest(model_name=name, inputs=inputs, requested_output_names=["y"], **fields)


def output(fill: float = 1) -> Tensor:
    return Tensor.from_array("y", np.full(4, fill, np.float32))


def test_exec(bench: Bench) -> None:
    bench.answers.append(lambda asked: asked.answer(output(7)))
    response = request().exec()
    assert not response.has_error()
    found = pb_utils.get_output_tensor_by_name(response, "y")
    assert found is not None and found.as_numpy().tolist() == [7] * 4


def test_call_inherits_fields_of_its_request(bench: Bench) -> None:
    seen: list[Asked] = []

    def answer(asked: Asked) -> None:
        seen.append(asked)
        asked.answer(output())

    bench.answers.append(answer)
    flags = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
    request(
        request_id="5", model_version=1, correlation_id="s", flags=flags, timeout=9, parameters={"k": 2}
    ).exec()
    infer = seen[0].request
    assert (infer.id, infer.model_version, infer.sequence_id, infer.timeout_us) == ("5", "1", "s", 9)
    assert (infer.sequence_start, infer.sequence_end) == (True, False)
    assert (infer.parameters, infer.chain) == ({"k": 2}, ("caller",))


def test_an_error_is_a_response(bench: Bench) -> None:
    bench.answers.append(lambda asked: asked.answer(error=unavailable("busy")))
    error = request().exec().error()
    assert (error.message(), error.code()) == ("busy", pb_utils.TritonError.UNAVAILABLE)


def test_call_of_an_unknown_model_fails(bench: Bench) -> None:
    response = request("nobody").exec()
    text = "Request for unknown model: 'nobody' is not found"
    assert response.error().message() == f"Model nobody - Error when running inference: {text}"
    assert response.error().code() == pb_utils.TritonError.INTERNAL


def test_a_decoupled_model_needs_the_flag(bench: Bench) -> None:
    text = "Model d - Error when running inference: Model d is using the decoupled."
    assert request("d").exec().error().message().startswith(text)


def test_responses_of_a_decoupled_model(bench: Bench) -> None:
    def answer(asked: Asked) -> None:
        asked.answer(output(1), final=False)
        asked.answer(output(2), final=False)
        asked.answer()

    bench.answers.append(answer)
    responses = list(request("d").exec(decoupled=True))
    values = [[tensor.as_numpy()[0] for tensor in response.output_tensors()] for response in responses]
    assert values == [[1], [2], []]


def test_cancelling_a_decoupled_call(bench: Bench) -> None:
    responses = request("d").exec(decoupled=True)
    assert bench.taken.wait(60)
    asked = bench.models.asked[0]
    responses.cancel()
    bench.plane.call(asyncio.sleep(0))
    assert asked.advised and not asked.cancelled, "the called model may go on"
    bench.plane.loop.call_soon_threadsafe(asked.answer, output(1))
    assert [response.has_error() for response in responses] == [False]


def test_a_reader_that_never_reads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_QUEUED", 2)
    responses = calls.ResponseIterator()
    for _ in range(3):
        responses.receive(InferResponse(final=False))
    found = list(responses)
    assert len(found) == 3
    error = found[-1].error()
    assert error is not None and error.message() == "more than 2 responses are queued for the caller"


def test_async_exec(bench: Bench) -> None:
    bench.answers += [lambda asked: asked.answer(output(1)), lambda asked: asked.answer(output(2))]

    async def both() -> list[Any]:
        return [*await asyncio.gather(request().async_exec(), request().async_exec())]

    found = [response.output_tensors()[0].as_numpy()[0] for response in asyncio.run(both())]
    assert sorted(found) == [1, 2]


def test_an_async_call_of_a_decoupled_model_waits_for_its_first_response(bench: Bench) -> None:
    """Two wait at the same time, although a model reads responses by a `for`, which blocks its loop."""
    taken: list[Asked] = []
    bench.answers += [taken.append, taken.append]

    async def ask() -> int:
        return len(list(await request("d").async_exec(decoupled=True)))

    async def both() -> list[int]:
        asked = asyncio.gather(ask(), ask())
        while len(taken) < 2:
            await asyncio.sleep(0)
        for each in taken:
            bench.plane.loop.call_soon_threadsafe(each.answer, output(1))
        return [*await asked]

    assert asyncio.run(asyncio.wait_for(both(), 20)) == [1, 1]


def test_giving_up_on_an_async_call_cancels_it(bench: Bench) -> None:
    async def give_up() -> None:
        task = asyncio.ensure_future(request().async_exec())
        await asyncio.to_thread(bench.taken.wait, 5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(give_up())
    bench.plane.call(let_run())
    assert bench.models.asked[0].cancelled


def test_an_ensemble_runs_here(bench: Bench) -> None:
    bench.answers.append(lambda asked: asked.answer(output(4)))
    made = pb_utils.InferenceRequest("", 0, [pb_utils.Tensor("IN", np.ones(4, np.float32))], [], "e")
    assert made.exec().output_tensors()[0].as_numpy().tolist() == [4] * 4


def test_a_model_that_calls_itself(bench: Bench) -> None:
    assert request("caller").exec().error().message().startswith("circular call of models: caller -> caller")


def during(requests: list[Call], work: Callable[[], None]) -> None:
    """Do what a model does in `execute`."""
    calls.executing.set(requests)
    try:
        work()
    finally:
        calls.executing.set(())


def received(**fields: Any) -> Call:
    return Call(InferRequest("caller", "", (), **fields))


TRACED = f"00-{'ab' * 16}-{'cd' * 8}-01"
OTHER = f"00-{'12' * 16}-{'34' * 8}-01"


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([received(deadline=9.0, priority=2, trace=TRACED)], (9.0, 2, TRACED)),
        ([received(deadline=5.0), received(deadline=9.0, priority=3), received(deadline=1.0)], (9.0, 3, "")),
        ([received(deadline=5.0, priority=4), received(priority=2, trace=TRACED)], (0.0, 2, TRACED)),
        ([], (0.0, 0, "")),
    ],
)
def test_call_inherits_from_all_requests_of_the_batch(
    requests: list[Call], expected: tuple[Any, ...]
) -> None:
    found: list[InferRequest] = []
    during(requests, lambda: found.append(calls.wire_request(request(), "caller", calls.callers())))
    assert (found[0].deadline, found[0].priority, found[0].trace) == expected


def test_a_trace_given_to_the_call_counts() -> None:
    trace = InferenceTrace(OTHER)
    infer = calls.wire_request(request(trace=trace), "caller", [received(trace=TRACED)])
    assert infer.trace == OTHER


def test_answered_requests_no_longer_call() -> None:
    done = received(deadline=9.0)
    done.deliver(InferResponse())
    found: list[Any] = []
    during([done], lambda: found.append(calls.callers()))
    assert found == [()]


def test_models_that_call_each_other(bench: Bench) -> None:
    found: list[str] = []
    during([received(chain=("m",))], lambda: found.append(request("m").exec().error().message()))
    assert found[0].startswith("circular call of models: m -> caller -> m")


def test_a_model_may_call_itself_while_an_instance_is_left(bench: Bench) -> None:
    bench.answers.append(lambda asked: asked.answer(output(5)))
    found: list[pb_utils.InferenceResponse] = []
    during([received(chain=("three", "three"))], lambda: found.append(request("three").exec()))
    assert not found[0].has_error()
    during([received(chain=("three",) * 3)], lambda: found.append(request("three").exec()))
    text = "circular call of models: three -> three -> three -> caller -> three; a model that calls itself"
    error = found[1].error()
    assert error is not None and error.message().startswith(text)


def test_call_of_a_batch_holds_what_any_of_its_requests_holds() -> None:
    chains: list[tuple[str, ...]] = [("a", "b"), (), ("a", "a"), ("c",)]
    requests = [received(chain=chain) for chain in chains]
    infer = calls.wire_request(request(), "a", requests)
    assert sorted(infer.chain) == ["a", "a", "a", "b", "c"]


def test_models_are_loaded_and_unloaded(bench: Bench) -> None:
    pb_utils.load_model("m", "{}", {"file:1/model.py": b""})
    pb_utils.unload_model("m", True)
    load = LoadRequest("m", "{}", {"1/model.py": b""}, requester="caller")
    assert bench.loading.asked == [("load", load), ("unload", "m", True, "caller")]
    with pytest.raises(pb_utils.TritonModelException, match="no"):
        pb_utils.load_model("bad")
    assert pb_utils.is_model_ready("m") and pb_utils.is_model_ready("e", "1")
    assert not pb_utils.is_model_ready("nobody") and not pb_utils.is_model_ready("m", "9")


def test_loads_are_requested_by_the_application_once_loaded(bench: Bench) -> None:
    server_api.current().loaded = True  # type: ignore[attr-defined]
    pb_utils.load_model("m")
    assert bench.loading.asked == [("load", LoadRequest("m", requester="caller:1"))]


def test_tensors_of_a_blocking_call_are_not_copied(bench: Bench) -> None:
    array = np.zeros((1, 5000), np.float32)
    made = pb_utils.InferenceRequest("", 0, [pb_utils.Tensor("x", array)], [], "m")
    waits, goes_on = (calls.wire_request(made, "caller", (), waits).inputs[0] for waits in (True, False))
    array[0, 0] = 1
    assert (waits.array()[0, 0], goes_on.array()[0, 0]) == (1, 0)


def test_a_response_handed_on_stays_where_it_is(bench: Bench) -> None:
    data = memoryview(bytes(16))
    received = received_tensor(Tensor("y", "FP32", (4,), data))
    renamed = pb_utils.Tensor.from_dlpack("x", received)
    assert (renamed.name(), renamed._to_wire().data, received.name()) == ("x", data, "y")
    received.as_numpy()[0] = 7  # the model's own copy from now on
    assert pb_utils.Tensor.from_dlpack("x", received).as_numpy()[0] == 7


def test_calls_share_one_connection(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for fill in (1, 2, 3):
        bench.answers.append(lambda asked, fill=fill: asked.answer(output(fill)))  # type: ignore[misc]
        assert request().exec().output_tensors()[0].as_numpy().tolist() == [fill] * 4
    assert "'nobody' is not found" in request("nobody").exec().error().message()
    monkeypatch.setattr(bench.models, "resolve", None)
    assert "not callable" in request().exec().error().message(), "whatever happens, the model goes on"


def test_a_model_that_unloads_itself_does_not_wait(bench: Bench) -> None:
    pb_utils.unload_model("caller")
    block_until(lambda: bench.loading.asked)
    assert bench.loading.asked == [("unload", "caller", False, "caller")]


@pytest.mark.parametrize("function", [pb_utils.load_model, pb_utils.unload_model])
def test_a_model_cannot_load_itself_while_it_is_loaded(bench: Bench, function: Callable[[str], None]) -> None:
    with server_api.no_calls("'initialize'"):
        with pytest.raises(pb_utils.TritonModelException) as caught:
            function("caller")
        assert not bench.loading.asked
        function("m")
    assert str(caught.value) == "Model 'caller' cannot load or unload itself in 'initialize'."
    assert len(bench.loading.asked) == 1


@pytest.mark.parametrize("on_loop", [False, True])
def test_connection_does_not_keep_the_first_caller_alive(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, on_loop: bool
) -> None:
    """Tasks and transports keep the context they are made in: the requests of the first call, for ever."""
    seen: list[Any] = []
    submit, open_connection = bench.models.submit, Connection.open

    async def opened(spec: ModelSpec, cluster: Cluster) -> Connection:
        seen.append(executing.get())
        return await open_connection(spec, cluster)

    def submitted(*args: Any) -> Any:
        seen.append(executing.get())
        return submit(*args)

    async def begin() -> ResponseIterator:
        return start()

    def start() -> ResponseIterator:
        executing.set((cast(Any, SimpleNamespace(answered=True)),))
        return cast(ResponseIterator, request().exec(decoupled=True))

    monkeypatch.setattr(Connection, "open", opened)
    monkeypatch.setattr(bench.models, "submit", submitted)
    bench.answers.append(lambda asked: asked.answer(output()))
    next(bench.plane.call(begin()) if on_loop else copy_context().run(start))
    assert seen == [(), ()]


@pytest.mark.parametrize("request_id", ["", "outer"])
def test_calls_for_one_request_have_one_key_in_a_rollout(bench: Bench, request_id: str) -> None:
    models = bench.models
    second = msgspec.structs.replace(models.table.resolve("m"), version=2)
    splits = (Split("r", "m", stable=1, candidate=2),)
    models.table = RoutingTable(2, True, (*models.table.entries, second), splits=splits)
    keys: list[str] = []

    def answer(asked: Asked) -> None:
        assert asked.request.rollout is not None
        keys.append(asked.request.rollout.key)
        asked.answer(output())

    def call(times: int) -> None:
        for _ in range(times):
            assert not request().exec().has_error()

    bench.answers += [answer] * 3
    during([received(id=request_id)], lambda: call(2))
    during([received(id=request_id)], lambda: call(1))
    assert keys[0] == keys[1] and keys[0]
    assert (keys[2] == keys[0]) is bool(request_id)
    bench.answers.append(lambda asked: asked.answer(output()))
    assert not request().exec().has_error(), "a call while the model is loaded has no caller"
