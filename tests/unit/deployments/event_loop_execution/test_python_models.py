"""Python models served on the event loop of their replica."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.routing.handle_calls import HandleCalls
from backends.registry.configuration import normalise
from deployments.event_loop_execution import policy
from deployments.event_loop_execution.policy import REQUIRED_RUNS
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from tests.unit.bls_bench import SPEC
from tests.unit.bls_bench import Bench as Plane
from tests.unit.deployments.bls.test_service import bench as bench
from tests.unit.deployments.bls.test_service import output
from tests.unit.ensembles import Asked
from tests.unit.scheduling_fakes import FakeServeBatch
from tests.waiting import until

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
async def test_a_python_model_that_calls_others_moves_to_the_loop(
    bench: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, calls: int
) -> None:
    monkeypatch.setattr(policy, "SHORT_NS", 10**12)
    monkeypatch.setattr(policy, "LONG_NS", 10**12)
    served = await served_caller(bench, tmp_path, source)
    handle = HandleCalls(served.config, served.submit, bench.plane)
    thread = served.instances._placed[0].thread
    for i in range(REQUIRED_RUNS + 3):
        assert thread.executes_on_loop == (i >= REQUIRED_RUNS)
        bench.answers += [*(answer_with(0) for _ in range(calls - 1)), answer_with(i)]
        found = await handle.call({"IN": np.ones(4, np.float32)})
        assert isinstance(found, dict) and found["OUT"].tolist() == [i] * 4
    await asyncio.to_thread(served.close, 5)


@pytest.mark.parametrize("error", ["ValueError('odd')", "SystemExit('odd')"])
async def test_a_coroutine_on_the_loop_fails_its_own_request_only(
    bench: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """Before its call, and after it."""
    monkeypatch.setattr(policy, "SHORT_NS", 10**12)
    monkeypatch.setattr(policy, "LONG_NS", 10**12)
    failing = f"if np.array_equal(tensor.as_numpy(), [{{}}] * 4): raise {error}\n"
    source = AWAITING.replace("import", "import numpy as np\nimport", 1)
    source = source.replace("for _ in", f"{failing.format(5)}        for _ in")
    source = source.replace("return pb_utils", f"{failing.format(6)}        return pb_utils")
    served = await served_caller(bench, tmp_path, source)
    handle = HandleCalls(served.config, served.submit, bench.plane)
    for _ in range(REQUIRED_RUNS):
        bench.answers += [answer_with(0), answer_with(1)]
        await handle.call({"IN": np.ones(4, np.float32)})
    with pytest.raises(InferError, match="odd"):
        await handle.call({"IN": np.full(4, 5, np.float32)})
    bench.answers += [answer_with(0), answer_with(6)]
    with pytest.raises(InferError, match="odd"):
        await handle.call({"IN": np.ones(4, np.float32)})
    assert served.instances._placed[0].thread.executes_on_loop and bench.plane.alive
    await asyncio.to_thread(served.close, 5)


LOOPING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            while array[0]:
                pass
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return responses
"""


async def test_a_looping_python_model_returns_to_its_thread_for_good(
    bench: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(policy, "SHORT_NS", 10**12)
    monkeypatch.setattr(policy, "LONG_NS", 10**12)  # so that only the watchdog decides
    served = await served_caller(bench, tmp_path, LOOPING)
    handle = HandleCalls(served.config, served.submit, bench.plane)
    thread = served.instances._placed[0].thread
    for _ in range(REQUIRED_RUNS):
        await handle.call({"IN": np.zeros(4, np.float32)})
    assert thread.executes_on_loop
    looping, watchdog, now = np.ones(4, np.float32), served.instances.watchdog, 100.0
    monkeypatch.setattr(watchdog, "_clock", lambda: now)
    call = asyncio.create_task(handle.call({"IN": looping}))
    await until(lambda: watchdog._busy_since)
    now += 1.25
    assert watchdog.check() == ""
    assert "model 'caller' has kept the event loop of its replica busy for 1.2 s" in caplog.text
    looping[0] = 0  # the model reads the caller's memory
    await call
    for _ in range(REQUIRED_RUNS):
        assert not thread.executes_on_loop
        await handle.call({"IN": np.zeros(4, np.float32)})
    assert caplog.text.count("has kept the event loop") == 1
    await asyncio.to_thread(served.close, 5)
