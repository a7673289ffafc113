"""Calls of other models by a backend in C (probe/caller.c), over a router that is made up."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, unavailable
from app.core.tensors import InferRequest, Tensor
from app.routing.manager_client import LoadRequest
from backends.cpp import calls
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from tests.unit.backend_harness import Call, Served, config, infer
from tests.unit.bls_bench import Bench, open_bench
from tests.unit.ensembles import Asked
from tests.waiting import block_until

TENSORS = """
    input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
TRACED = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with open_bench(monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def caller(libraries: Path) -> Iterator[Served]:
    text = f'name: "caller" backend: "caller" max_batch_size: 8 {TENSORS}'
    loaded = Served(find_backend(BackendPlace("caller", libraries)), config(text))
    yield loaded
    loaded.close()


def ask(model: str = "m", mode: str = "", size: int = 2, **fields: Any) -> InferRequest:
    values = np.arange(size, dtype=np.float32).reshape(1, size)
    return infer({"IN": values}, parameters={"model": model, "mode": mode}, **fields)


def output(*values: float) -> Tensor:
    return Tensor.from_array("y", np.array([values], np.float32))


def answers(asked: Asked) -> None:
    """The sum of the input, and how many values it has."""
    values = asked.request.inputs[0].array()
    asked.answer(output(values.sum(), values.size))


def failure(call: Call) -> tuple[ErrorCode, str]:
    (response,) = call.wait()
    assert response.failure is not None
    return response.failure.code, response.failure.message


def trail(call: Call) -> str:
    (response,) = call.wait()
    assert response.failure is None, response.failure
    return str(response.parameters["trail"]).strip()


def test_call(bench: Bench, caller: Served) -> None:
    seen: list[InferRequest] = []

    def answer(asked: Asked) -> None:
        seen.append(asked.request)
        answers(asked)

    bench.answers.append(answer)
    (call,) = caller(ask(size=4))

    assert call.arrays["OUT"].tolist() == [[6, 4]]
    assert trail(call) == "start y response freed final released"
    infer = seen[0]
    assert (infer.model_name, infer.id, infer.sequence_id, infer.timeout_us) == ("m", "c1", 77, 5000)
    assert (infer.sequence_start, infer.sequence_end) == (False, True)
    assert (infer.parameters, [output.name for output in infer.outputs]) == ({"n": -3}, ["y"])
    assert (infer.inputs[0].name, infer.inputs[0].shape, infer.chain) == ("x", (1, 4), ("caller",))


def test_questions_are_answered_while_every_callback_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback may ask the server something: it must not wait for another callback's end."""
    answered, over = threading.Event(), threading.Event()
    monkeypatch.setattr(calls, "answer", lambda *question: answered.set())
    made = calls.ModelCalls()
    for _ in range(calls._THREADS):
        made.pool.submit(over.wait, 30)
    made.answer(1, "ready", "m", "", "", [])
    assert answered.wait(60)
    over.set()
    made.pool.shutdown()


@pytest.mark.parametrize("size", [1023, 1024, 1 << 18])  # around what is copied into a message, and beyond
def test_tensors_of_any_size_are_passed(bench: Bench, caller: Served, size: int) -> None:
    bench.answers.append(lambda asked: asked.answer(output(*(asked.request.inputs[0].array()[0] * 2))))
    (call,) = caller(ask(size=size))
    assert (call.arrays["OUT"] == 2 * np.arange(size)).all()


def test_call_inherits_from_the_batch(bench: Bench, caller: Served) -> None:
    seen: list[InferRequest] = []

    def answer(asked: Asked) -> None:
        seen.append(asked.request)
        answers(asked)

    bench.answers += [answer, answer]
    first = ask(deadline=5.0, priority=3, trace=TRACED, chain=("a",))
    caller(first, ask(deadline=9.0))

    assert [infer.deadline for infer in seen] == [9.0, 9.0]  # the first is released, its answer not yet sent
    assert (seen[0].priority, seen[0].trace, seen[0].chain) == (3, TRACED, ("a", "caller"))
    assert (seen[1].priority, seen[1].trace, seen[1].chain) == (0, "", ("caller",))


def test_call_of_another_thread_has_the_caller_of_its_trace(bench: Bench, caller: Served) -> None:
    seen: list[InferRequest] = []

    def answer(asked: Asked) -> None:
        seen.append(asked.request)
        answers(asked)

    bench.answers += [answer, answer]
    for mode in ("late", "trace"):
        (call,) = caller(ask(mode=mode, deadline=5.0, trace=TRACED))
        assert call.arrays["OUT"].tolist() == [[1, 2]]

    assert [infer.trace for infer in seen] == ["", TRACED]
    assert [infer.deadline for infer in seen] == [0.0, 5.0]


def test_unknown_model_cannot_be_called(bench: Bench, caller: Served) -> None:
    (call,) = caller(ask("nobody"))
    assert failure(call) == (ErrorCode.NOT_FOUND, "Request for unknown model: 'nobody' is not found")


def test_error_is_a_response(bench: Bench, caller: Served) -> None:
    bench.answers.append(lambda asked: asked.answer(error=unavailable("busy")))
    (call,) = caller(ask())
    assert failure(call) == (ErrorCode.UNAVAILABLE, "busy")


def test_model_that_calls_itself_does_not_wait(bench: Bench, caller: Served) -> None:
    (call,) = caller(ask("caller"))
    code, text = failure(call)
    assert code is ErrorCode.INVALID_ARG
    assert text.startswith("circular call of models: caller -> caller;")


def stream(asked: Asked) -> None:
    asked.answer(output(1), final=False)
    asked.answer(output(2), final=False)
    asked.answer()


def test_decoupled_model_sends_any_number_of_responses(bench: Bench, caller: Served) -> None:
    bench.answers.append(stream)
    (call,) = caller(ask("d"))
    one = "start y response freed"
    assert trail(call) == f"{one} {one} nothing final released"
    assert call.arrays["OUT"].tolist() == [[2]]


def test_callback_may_call_a_model(bench: Bench, caller: Served) -> None:
    bench.answers += [answers, answers]
    (call,) = caller(ask(mode="nested"))
    assert trail(call) == "start y nested response freed final released"


def test_backend_may_cancel_a_call(bench: Bench, caller: Served) -> None:
    def cancelled(asked: Asked) -> None:
        def answer() -> None:
            if asked.advised:
                asked.answer(error=unavailable("it was cancelled"))
            else:
                bench.plane.loop.call_later(0.001, answer)

        answer()

    bench.answers.append(cancelled)
    (call,) = caller(ask(mode="cancel"))
    assert failure(call) == (ErrorCode.UNAVAILABLE, "it was cancelled")


def test_call_whose_callers_are_cancelled_is_not_sent(bench: Bench, caller: Served) -> None:
    call = Call(ask())
    call.cancelled = True
    caller.backend.instance_execute(caller.instance, [call])
    assert failure(call)[0] is ErrorCode.CANCELLED
    assert not bench.models.asked


def test_refused_buffer_fails_the_response(bench: Bench, caller: Served) -> None:
    bench.answers.append(answers)
    (call,) = caller(ask(mode="refuse buffers"))
    assert failure(call) == (ErrorCode.INTERNAL, "no buffers here")


def test_responses_that_are_not_taken_are_bounded(
    bench: Bench, caller: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_QUEUED", 2)
    found: list[Asked] = []

    def flood(asked: Asked) -> None:
        found.append(asked)
        for _ in range(1000):
            asked.answer(output(1), final=False)

    bench.answers.append(flood)
    (call,) = caller(ask("d"))
    assert failure(call)[0] is ErrorCode.UNAVAILABLE
    block_until(lambda: found[0].cancelled)


@pytest.mark.parametrize(("model", "transactions"), [("m", 1), ("d", 2)])
def test_models_are_described(bench: Bench, caller: Served, model: str, transactions: int) -> None:
    (call,) = caller(ask(model, "ask"))
    ready, found, batching, metadata = trail(call).split(" ", 3)
    assert (ready, int(found), batching) == ("1", transactions, "1")
    assert json.loads(metadata) == {
        "name": model,
        "versions": ["1"],
        "platform": "identity",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [4]}],
    }


def test_question_about_an_unknown_model_fails(bench: Bench, caller: Served) -> None:
    (call,) = caller(ask("nobody", "ask"))
    assert failure(call)[0] is ErrorCode.NOT_FOUND


def test_models_are_loaded_and_unloaded(bench: Bench, caller: Served) -> None:
    caller(ask("m", "reload"))
    assert bench.loading.asked == [
        ("unload", "m", False, "caller"),
        ("load", LoadRequest("m", requester="caller")),
    ]
    (call,) = caller(ask("bad", "reload"))
    assert failure(call) == (ErrorCode.UNAVAILABLE, "no")


def test_models_cannot_be_called_without_a_server(caller: Served) -> None:
    (call,) = caller(ask())
    assert failure(call)[0] is ErrorCode.UNSUPPORTED


def test_only_libraries_that_name_its_functions_call_models(libraries: Path, tmp_path: Path) -> None:
    assert BackendPlace("caller", libraries).may_call_models
    (tmp_path / "quiet").mkdir()
    (tmp_path / "quiet" / "libtriton_quiet.so").write_bytes(b"TRITONBACKEND_RequestInput")
    assert not BackendPlace("quiet", tmp_path).may_call_models
    (tmp_path / "quiet" / "libtriton_quiet.so").write_bytes(b"")
    assert not BackendPlace("quiet", tmp_path).may_call_models
    assert BackendPlace("python", None).may_call_models
    assert not BackendPlace("onnxruntime", None).may_call_models
