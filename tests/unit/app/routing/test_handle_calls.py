"""Calls of a model version as through a Serve handle, without Serve."""

import asyncio
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf import text_format
from ray.exceptions import RayTaskError
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError, invalid_arg
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.routing import handle_calls
from app.routing.handle_calls import HandleCalls
from app.transport.loops.thread import LoopThread
from backends.registry.configuration import normalise
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from deployments.spec import ModelSpec
from nereid import InferError as PublicError
from nereid.raised import for_callers
from tests.unit.scheduling_fakes import FakeServeBatch
from tests.waiting import until

CONFIG = """
    backend: "{backend}" max_batch_size: 4
    input {{ name: "INPUT0" data_type: {type} dims: [ -1 ] }}
    output {{ name: "OUTPUT0" data_type: {type} dims: [ -1 ] }} {more}
"""
COUNTDOWN = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            (tensor,) = request.inputs()
            for left in range(int(tensor.as_numpy()[0, 0]), 0, -1):
                if request.is_cancelled():
                    break
                time.sleep(0.001)  # a thread of the model: the reader of the test needs the GIL too
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.float32([[left]]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


class Loader:
    """Loads models and unloads them at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._plane = LoopThread("test-plane")
        self.models: list[ServedModel] = []

    def __call__(self, backend: str = "identity", kind: str = "TYPE_FP32", more: str = "") -> HandleCalls:
        (self._directory / "1").mkdir(exist_ok=True)
        (self._directory / "1" / "model.py").write_text(COUNTDOWN)
        text = CONFIG.format(backend=backend, type=kind, more=more)
        config = normalise(text_format.Parse(text, mc.ModelConfig(name="m")))
        spec = ModelSpec("m", 1, str(self._directory), config.SerializeToString(), "m:1", "", bytes(32))
        model = load_model(spec, self._plane, FakeServeBatch())
        self._plane.call(model.open())
        self.models.append(model)
        return HandleCalls(model.config, model.submit, self._plane)

    def close(self) -> None:
        for model in self.models:
            model.close(timeout=60)
        self._plane.stop()


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Loader]:
    made = Loader(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("TYPE_FP32", np.array([[1.5, 2]], np.float32)),
        ("TYPE_BF16", np.array([[0x3F80]], np.uint16)),
        ("TYPE_STRING", np.array([["a", "bc"]])),
    ],
)
async def test_arrays_in_arrays_out(load: Loader, kind: str, values: Any) -> None:
    calls = load(kind=kind)
    outputs = await calls.call({"INPUT0": values}, outputs=["OUTPUT0"], request_id="7")
    assert isinstance(outputs, dict)
    again = pickle.loads(pickle.dumps(outputs))["OUTPUT0"]
    expected = np.char.encode(values).astype(object) if kind == "TYPE_STRING" else values
    assert np.array_equal(again, expected)
    assert again.dtype == expected.dtype
    assert load.models[0].statistics.succeeded == 1


async def test_bfloat16_of_ml_dtypes_goes_in(load: Loader) -> None:
    values = np.array([[1.5]], ml_dtypes.bfloat16)
    outputs = await load(kind="TYPE_BF16").call({"INPUT0": values})
    assert isinstance(outputs, dict)
    assert np.array_equal(outputs["OUTPUT0"], values.view(np.uint16))


async def test_a_refusal_is_typed_on_the_other_side(load: Loader) -> None:
    calls = load()
    with pytest.raises(PublicError) as caught:
        await for_callers(calls.call)({"INPUT0": np.zeros((1, 4), np.int32)})
    # As Ray carries what a task raises.
    error = RayTaskError("call", "", caught.value)  # type: ignore[no-untyped-call]
    carried = pickle.loads(pickle.dumps(error)).as_instanceof_cause()
    assert isinstance(carried, PublicError)
    assert (carried.code, carried.message) == ("INVALID_ARG", caught.value.message)
    assert "'INPUT0' data-type is 'INT32'" in carried.message


class Submissions:
    """Keeps the sink of a request, and whether the request was cancelled."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []
        self.cancelled = threading.Event()

    def submit(self, request: InferRequest, sink: Sink) -> Callable[[], None]:
        self.sinks.append(sink)
        return self.cancelled.set


@pytest.fixture
def plane() -> Iterator[LoopThread]:
    made = LoopThread("test-plane")
    yield made
    made.stop()


async def test_first_response_is_the_answer(plane: LoopThread) -> None:
    submitted = Submissions()
    call = asyncio.create_task(HandleCalls(mc.ModelConfig(name="m"), submitted.submit, plane).call({}))
    await until(lambda: bool(submitted.sinks))
    for value in (1, 2):  # the second is late, and ignored
        output = Tensor.from_array("OUTPUT0", np.array([value]))
        plane.loop.call_soon_threadsafe(submitted.sinks[0], InferResponse("m", "1", (output,)))
    response = await call
    assert isinstance(response, dict) and response["OUTPUT0"].tolist() == [1]
    assert not submitted.cancelled.is_set()


async def test_failed_response_is_raised(plane: LoopThread) -> None:
    submitted = Submissions()
    call = asyncio.create_task(HandleCalls(mc.ModelConfig(name="m"), submitted.submit, plane).call({}))
    await until(lambda: bool(submitted.sinks))
    plane.loop.call_soon_threadsafe(submitted.sinks[0], failed(invalid_arg("a bad input")))
    with pytest.raises(InferError, match="a bad input"):
        await call


async def test_cancelled_call_cancels_its_request(plane: LoopThread) -> None:
    submitted = Submissions()
    call = asyncio.create_task(HandleCalls(mc.ModelConfig(name="m"), submitted.submit, plane).call({}))
    await until(lambda: bool(submitted.sinks))
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled() and submitted.cancelled.wait(60)
    plane.loop.call_soon_threadsafe(submitted.sinks[0], failed(invalid_arg("cancelled")))  # ignored


async def test_a_decoupled_model_streams(load: Loader) -> None:
    calls = load("python", more=DECOUPLED)
    responses: Any = await calls.call({"INPUT0": np.array([[3]], np.float32)})
    assert inspect.isasyncgen(responses)
    found: list[Any] = [response async for response in responses]
    assert [response["OUTPUT0"].item() for response in found] == [3, 2, 1]


async def test_reader_that_stops_cancels_the_request(load: Loader) -> None:
    calls = load("python", more=DECOUPLED)
    responses: Any = await calls.call({"INPUT0": np.array([[1e7]], np.float32)})
    await anext(responses)
    await responses.aclose()
    await until(lambda: not load.models[0].outstanding)


async def test_slow_reader_gets_an_error(load: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_calls, "MAX_WAITING", 2)
    calls = load("python", more=DECOUPLED)
    responses: Any = await calls.call({"INPUT0": np.array([[1e7]], np.float32)})
    first = asyncio.ensure_future(anext(responses))
    await first
    await until(lambda: responses.ag_frame.f_locals["responses"]._waiting.qsize() >= 3)
    with pytest.raises(InferError, match="more than 2 responses wait to be read"):
        async for _ in responses:
            pass
    await until(lambda: not load.models[0].outstanding)
