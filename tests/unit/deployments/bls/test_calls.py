"""Calls that a model makes while it executes: cancelled with their requests, and part of their traces."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode
from app.core.inference import Cancel
from app.core.tensors import TENSORS_TRACE, UNNAMED_TRACE, InferRequest, InferResponse, Tensor, Timestamps
from backends.registry.configuration import normalise
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from deployments.spec import ModelSpec
from tests.environments import make
from tests.server import wait_until
from tests.unit.bls_bench import Bench
from tests.unit.deployments.bls.test_service import bench  # noqa: F401 - a fixture
from tests.unit.ensembles import Asked
from tests.unit.scheduling_fakes import FakeServeBatch

CONFIG = """
    name: "caller" backend: "python" max_batch_size: 4 dynamic_batching { preferred_batch_size: 2 }
    input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
    output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
    parameters { key: "kind" value { string_value: "%s" } }
"""
MODEL = """
import triton_python_backend_utils as pb_utils

def call(requests):
    return pb_utils.InferenceRequest(
        model_name="m", inputs=requests[0].inputs(), requested_output_names=["y"], request_id="inner"
    )

def answers(requests, response):
    if response.has_error():
        return [pb_utils.InferenceResponse(error=response.error()) for _ in requests]
    return [pb_utils.InferenceResponse(response.output_tensors()) for _ in requests]

class Waits:
    def execute(self, requests):
        return answers(requests, call(requests).exec())

class Awaits:
    async def execute(self, requests):
        return answers(requests, await call(requests).async_exec())

class TritonPythonModel:
    def initialize(self, args):
        self.execute = (Awaits() if "Awaits" in args["model_config"] else Waits()).execute

    def execute(self, requests):
        pass
"""
INPUT = Tensor.from_array("x", np.ones((1, 4), np.float32))


class Caller:
    """The served model under test, in front of a router that is made up."""

    def __init__(self, bench: Bench, directory: Path, kind: str) -> None:  # noqa: F811
        (directory / "1").mkdir()
        (directory / "1" / "model.py").write_text(MODEL)
        if "elsewhere" in kind:  # in a process of its own
            make(directory / "venv")
        config = normalise(text_format.Parse(CONFIG % kind, mc.ModelConfig()))
        spec = ModelSpec("caller", 1, str(directory), config.SerializeToString(), "", "", bytes(32))
        self.bench = bench
        self.model = load_model(spec, bench.plane, FakeServeBatch())
        self.responses: list[InferResponse] = []
        self.answered = threading.Event()
        bench.plane.call(self.model.open())

    def infer(self, **fields: Any) -> Callable[..., None]:
        """Send a request; returns what cancels it."""

        async def submit() -> Cancel:
            return self.model.submit(InferRequest("caller", "", (INPUT,), **fields), self._take)

        cancel = self.bench.plane.call(submit())
        return partial(self._cancel, cancel)

    def _cancel(self, cancel: Cancel, advice: bool = False) -> None:
        self.bench.plane.loop.call_soon_threadsafe(cancel, advice)

    def _take(self, response: InferResponse) -> None:
        self.responses.append(response)
        self.answered.set()

    def asked(self) -> Asked:
        """The nested call, once it is under way."""
        wait_until(lambda: bool(self.bench.models.asked), 20, "the model has called")
        return self.bench.models.asked[0]

    def answer(self, response: InferResponse) -> InferResponse:
        """Answer the nested call; returns what the caller then answers."""
        self.bench.plane.loop.call_soon_threadsafe(self.asked().sink, response)
        assert self.answered.wait(20)
        return self.responses[0]


@pytest.fixture(params=["Waits", "Awaits", "Waits elsewhere", "Awaits elsewhere"])
def caller(bench: Bench, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Caller]:  # noqa: F811
    made = Caller(bench, tmp_path, request.param)
    yield made
    made.model.close(timeout=60)


def response(**fields: Any) -> InferResponse:
    return InferResponse("m", "3", (Tensor.from_array("y", np.ones((1, 4), np.float32)),), "inner", **fields)


def test_a_cancelled_request_cancels_its_call(caller: Caller) -> None:
    cancel = caller.infer()
    asked = caller.asked()
    assert not asked.cancelled
    cancel()
    wait_until(lambda: asked.cancelled, 20, "the nested call is cancelled")
    caller.answer(response())


def test_advice_leaves_the_call_of_a_request_alone(caller: Caller) -> None:
    """Who has advised wants its response, which may depend on the call."""
    cancel = caller.infer()
    asked = caller.asked()
    cancel(advice=True)
    assert caller.answer(response()).failure is None
    assert not asked.cancelled and not asked.advised


def test_call_inherits_deadline_and_priority(caller: Caller) -> None:
    caller.infer(deadline=1e12, timeout_us=5)
    asked = caller.asked()
    assert asked.request.deadline == 1e12
    assert caller.answer(response()).failure is None


def test_trace_of_a_request_contains_its_call(caller: Caller) -> None:
    caller.infer(trace=UNNAMED_TRACE, id="outer")
    assert caller.asked().request.trace == UNNAMED_TRACE
    answer = caller.answer(response(timestamps=Timestamps(5, request_end=7)))
    (call,) = answer.calls
    assert (call.model_name, call.model_version, call.request_id) == ("m", "3", "inner")
    assert (call.inputs, call.outputs) == ((), ())
    assert answer.timestamps is not None
    times = call.timestamps
    assert times.request_end - times.request_start == 2
    assert answer.timestamps.compute_start <= times.request_start <= answer.timestamps.compute_end


def test_trace_with_tensors_contains_those_of_the_call(caller: Caller) -> None:
    caller.infer(trace=TENSORS_TRACE)
    assert caller.asked().request.trace == TENSORS_TRACE
    answered = response(timestamps=Timestamps(5, request_end=7))
    (call,) = caller.answer(answered).calls
    assert [(tensor.name, tensor.array().tolist()) for tensor in (*call.inputs, *call.outputs)] == [
        ("x", [[1, 1, 1, 1]]), ("y", [[1, 1, 1, 1]])
    ]  # fmt: skip


def test_activities_of_a_backend_are_part_of_the_trace(bench: Bench, tmp_path: Path) -> None:  # noqa: F811
    custom = 'backend: "identity" parameters { key: "enable_custom_tracing" value { string_value: "true" } }'
    text = 'name: "i" input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 } output { name: "OUTPUT0" '
    config = text_format.Parse(f"{text} data_type: TYPE_FP32 dims: 4 }} {custom}", mc.ModelConfig())
    spec = ModelSpec("i", 1, str(tmp_path), normalise(config).SerializeToString(), "", "", bytes(32))
    model = load_model(spec, bench.plane, FakeServeBatch())
    bench.plane.call(model.open())
    answers = [infer_on(bench, model, trace) for trace in ("", UNNAMED_TRACE)]
    model.close(timeout=60)
    assert answers[0].timestamps is None
    times = answers[1].timestamps
    assert times is not None
    names, stamps = zip(*times.activities, strict=True)
    assert names == ("CUSTOM_ACTIVITY_START", "CUSTOM_ACTIVITY_END", "CUSTOM_SINGLE_ACTIVITY")
    assert [times.compute_start, *stamps, times.compute_end] == sorted(
        [times.compute_start, *stamps, times.compute_end]
    )


def infer_on(bench: Bench, model: ServedModel, trace: str) -> InferResponse:  # noqa: F811
    """The answer of the identity model."""
    answered: Future[InferResponse] = Future()
    tensor = Tensor.from_array("INPUT0", np.ones(4, np.float32))

    async def submit() -> None:
        model.submit(InferRequest("i", "", (tensor,), trace=trace), answered.set_result)

    bench.plane.call(submit())
    return answered.result(20)


def test_untraced_request_records_no_call(caller: Caller) -> None:
    caller.infer()
    answer = caller.answer(response())
    assert (answer.calls, answer.timestamps) == ((), None)


def test_no_call_is_made_for_a_cancelled_request(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    from deployments.bls.calls import BlsCall

    monkeypatch.setattr(BlsCall, "unwanted", True)
    caller.infer()
    assert caller.answered.wait(20)
    error = caller.responses[0].failure
    assert error is not None and error.code is ErrorCode.CANCELLED
    assert not caller.bench.models.asked
