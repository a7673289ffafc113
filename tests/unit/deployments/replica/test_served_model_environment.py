"""Models that are executed in another environment than the replica's."""

import queue
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.observability.statistics import CustomFamily, CustomSample
from app.core.tensors import InferRequest, Tensor
from deployments.replica.readiness import ReadinessWatch
from tests import environments
from tests.unit.backends.onnxruntime.test_backend import identity
from tests.unit.deployments.served_model_bench import CONFIG, Bench, request

PYTHON_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils
import NAME

class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("seen", "", pb_utils.MetricFamily.COUNTER)
        self.counter = self.family.Metric()
    def execute(self, requests):
        self.counter.increment(len(requests))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())])
                for r in requests]
    def is_ready(self):
        return self.counter.value() == 0
"""


def test_python_model_executes_in_its_own_environment(bench: Bench) -> None:
    folder = bench.directory / "m"
    environments.make(folder / "venv")
    (folder / "1" / "model.py").write_text(PYTHON_MODEL.replace("NAME", "only_here"))
    model = bench.load(CONFIG.replace("probe", "python"))
    told: queue.SimpleQueue[bool] = queue.SimpleQueue()

    async def watch() -> ReadinessWatch:
        watching = model.instances.watch_readiness(told.put)
        await watching.start()
        return watching

    async def stop(watching: ReadinessWatch) -> None:
        watching.stop()

    watching = bench.plane.call(watch(), 30)
    answer, _ = bench.submit(request("a"))
    assert answer.result(30).failure is None
    assert bench.report().custom == [CustomFamily("seen", "", "counter", [CustomSample({}, 1.0, 0, [], [])])]
    assert told.get(timeout=30) is False  # the model said no after its first request
    bench.plane.call(stop(watching), 30)
    model.close(timeout=30)
    bench.model = None


def test_missing_packages_are_explained(bench: Bench) -> None:
    folder = bench.directory / "m"
    (folder / "requirements.txt").write_text("no-such-package\n")
    (folder / "1" / "model.py").write_text(PYTHON_MODEL.replace("NAME", "no_such_package"))
    with pytest.raises(
        InferError, match="--backend-config=python,requirements=install gives each such model"
    ):
        bench.load(CONFIG.replace("probe", "python"))


ONNX = """
    name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime" instance_group { count: 2 kind: KIND_CPU }
"""


def test_built_in_backend_executes_in_another_environment(bench: Bench, tmp_path: Path) -> None:
    """The replica has nothing of the framework, whose module completes the configuration there too."""
    python = environments.borrow(tmp_path / "env", "numpy", "google", "onnxruntime")
    identity(bench.directory / "m")
    model = bench.load(ONNX, backend_config={"onnxruntime": {"environment": str(tmp_path / "env")}})
    assert model.model.config.input[0].name == "I" and model.model.config.max_batch_size == 4
    assert model.model.interpreter == python.with_name("python3")
    row = Tensor.from_array("I", np.arange(16, dtype=np.float32).reshape(1, 16))
    answer = bench.submit(InferRequest("m", "", (row,)))[0].result(30)
    assert answer.failure is None and bytes(answer.outputs[0].data) == bytes(row.data)
    pids = {instance.state.pid for instance in model.instances.instances}
    assert len(pids) == 1 and len(model.instances.instances) == 2
    report = bench.report()
    assert (report.inference_count, report.execution_count) == (1, 1)
    model.close(timeout=30)
    bench.model = None


@pytest.mark.parametrize(
    ("config", "value", "code", "text"),
    [
        (ONNX, "mine", ErrorCode.INVALID_ARG, "or its interpreter, got 'mine'"),
        (ONNX, "own", ErrorCode.UNSUPPORTED, "'nereid backends install onnxruntime' installs it"),
        (ONNX, "/nowhere", ErrorCode.INTERNAL, "/nowhere/bin/python does not exist"),
        (CONFIG, "own", ErrorCode.INVALID_ARG, "only backends of 'nereid backends list' have environments"),
    ],
)
def test_wrong_environments_are_refused(
    config: str, value: str, code: ErrorCode, text: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(bench.directory / "data"))
    settings = {name: {"environment": value} for name in ("onnxruntime", "probe")}
    with pytest.raises(InferError, match=re.escape(text)) as caught:
        bench.load(config, backend_config=settings)
    assert caught.value.code is code


def test_interpreter_that_is_too_old_is_named(bench: Bench, tmp_path: Path) -> None:
    old = tmp_path / "old" / "bin" / "python"
    old.parent.mkdir(parents=True)
    main = "import sys, runpy; sys.version_info = (3, 9, 18); sys.argv[:] = sys.argv[2:]"
    run = "runpy.run_path(sys.argv[0], run_name='__main__')"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{main}; {run}" "$@"\n')
    old.chmod(0o700)
    with pytest.raises(InferError, match=r"Python 3\.9\.18 .* is too old: 3\.10 is the oldest that works"):
        bench.load(ONNX, backend_config={"onnxruntime": {"environment": str(old)}})
