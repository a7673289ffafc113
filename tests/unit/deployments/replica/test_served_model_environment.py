"""A Python model with an environment of its own."""

import queue

import pytest

from app.core.errors import InferError
from app.core.statistics import CustomFamily, CustomSample
from tests import environments
from tests.unit.deployments.served_model_bench import CONFIG, Bench, request

PYTHON_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils
import NAME

class TritonPythonModel:
    def initialize(self, args):
        self.counter = pb_utils.MetricFamily("seen", "", pb_utils.MetricFamily.COUNTER).Metric()
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

    async def watch() -> None:
        await model.instances.watch_readiness(told.put).start()

    bench.plane.call(watch(), 30)
    answer, _ = bench.submit(request("a"))
    assert answer.result(30).failure is None
    assert bench.report().custom == [CustomFamily("seen", "", "counter", [CustomSample({}, 1.0, 0, [], [])])]
    assert told.get(timeout=30) is False  # the model said no after its first request
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
