"""A served sequence model over a backend of its own: it answers what it sees, and keeps nothing."""

import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.loops.thread import LoopThread
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from tests.unit.deployments.served_model_bench import model_spec
from tests.unit.scheduling_fakes import FakeServeBatch

BACKEND = """
import threading
import numpy as np
from app.core.errors import internal
from app.core.tensors import InferResponse, Tensor
from backends.array_backend import ArrayBackend

batches = []
gate = threading.Event()
gate.set()
entered = threading.Semaphore(0)


class TritonBackend(ArrayBackend):
    def load(self, instance):
        return instance

    def execute(self, instance, inputs, outputs):
        batches.append((instance.name, {name: array.ravel().tolist() for name, array in inputs.items()}))
        if not gate.is_set():
            entered.release()
            assert gate.wait(60)
        value = inputs["INPUT"]
        if (value < 0).any():
            raise internal("a bad input")
        history = inputs.get("HISTORY_IN", np.zeros_like(value))
        found = {"OUTPUT": value + history, "HISTORY_OUT": value + history}
        return {name: found[name] for name in outputs}
"""

CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""
STATE = """
  state {
    input_name: "HISTORY_IN" output_name: "HISTORY_OUT" data_type: TYPE_INT64 dims: [ 1 ]
    initial_state { name: "zero" data_type: TYPE_INT64 dims: [ 1 ] zero_data: true }
  }
"""


def config(
    sequence: str,
    max_batch_size: int = 4,
    count: int = 1,
    extra: str = "",
    backend: str = "sequence_probe",
    kind: str = "TYPE_INT64",
) -> str:
    return f"""
name: "m"
backend: "{backend}"
max_batch_size: {max_batch_size}
input {{ name: "INPUT" data_type: {kind} dims: [ 1 ] }}
output {{ name: "OUTPUT" data_type: {kind} dims: [ 1 ] }}
sequence_batching {{ {sequence} }}
instance_group {{ count: {count} kind: KIND_CPU }}
{extra}
"""


class SequenceBench:
    """Loads one model, and talks to it as an ingress does."""

    dtype: type[np.generic] = np.int64
    input_name = "INPUT"

    def __init__(self, directory: Path, backend: str = BACKEND, name: str = "sequence_probe") -> None:
        self.directory = directory
        self.name = name
        (directory / "backends" / name).mkdir(parents=True)
        (directory / "backends" / name / "backend.py").write_text(backend)
        (directory / "m" / "1").mkdir(parents=True, exist_ok=True)
        self.plane = LoopThread("test-data-plane")
        self.model: ServedModel | None = None
        self.batch = True
        self.text = ""

    def load(self, text: str, **fields: Any) -> ServedModel:
        spec = model_spec(self.directory, text, **fields)
        self.batch = mc.ModelConfig.FromString(spec.config).max_batch_size > 0
        self.model = load_model(spec, self.plane, FakeServeBatch())
        self.plane.call(self.model.open())
        return self.model

    @property
    def backend(self) -> Any:
        return sys.modules[f"nereid_backend_{self.name}"]

    def submit(
        self, sequence_id: int | str, value: int, start: bool = False, end: bool = False, **fields: Any
    ) -> "tuple[Future[InferResponse], Callable[[], None]]":
        """Send one request; returns its final response to come, and what cancels it.

        `keep` takes every response, in order.
        """
        keep = fields.pop("keep", None)
        shape = (fields.pop("rows", 1), 1) if self.batch else (1,)
        tensor = Tensor.from_array(self.input_name, np.full(shape, value, self.dtype))
        request = InferRequest(
            "m",
            "",
            (tensor,),
            sequence_id=sequence_id,
            sequence_start=start,
            sequence_end=end,
            **fields,
        )
        answer: Future[InferResponse] = Future()
        model = self.model
        assert model is not None

        def sink(response: InferResponse) -> None:
            if keep is not None:
                keep.append(response)
            if response.final:
                answer.set_result(response)

        async def begin() -> Callable[[], None]:
            return model.submit(request, sink)

        cancel = self.plane.call(begin(), 60)
        return answer, lambda: self.plane.call(_run(cancel), 60)

    def infer(
        self, sequence_id: int | str, value: int, start: bool = False, end: bool = False, **f: Any
    ) -> int:
        """The OUTPUT of one request; raises the error it was answered with."""
        return output(self.submit(sequence_id, value, start, end, **f)[0])

    def infer_all(
        self, sequence_id: int | str, value: int, start: bool = False, end: bool = False
    ) -> list[int]:
        """The OUTPUTs of every response to one request."""
        kept: list[InferResponse] = []
        final = self.submit(sequence_id, value, start, end, keep=kept)[0].result(60)
        if final.failure is not None:
            raise final.failure.error()
        return [int(tensor.array().ravel()[0]) for response in kept for tensor in response.outputs]

    def hold(self) -> None:
        """Executions stop in the model until `free`."""
        self.backend.gate.clear()

    def entered(self) -> None:
        assert self.backend.entered.acquire(timeout=60)

    def free(self) -> None:
        self.backend.gate.set()

    def close(self) -> None:
        if self.model is not None:
            if hasattr(sys.modules.get(f"nereid_backend_{self.name}"), "gate"):
                self.free()
            self.model.close(timeout=60)
        self.plane.stop()
        sys.modules.pop(f"nereid_backend_{self.name}", None)


def output(answer: "Future[InferResponse]", name: str = "OUTPUT") -> int:
    response = answer.result(60)
    response.raise_error()
    return next(int(tensor.array().ravel()[0]) for tensor in response.outputs if tensor.name == name)


async def _run(call: Callable[[], None]) -> None:
    call()


def refusal(bench: SequenceBench, *arguments: Any, **fields: Any) -> InferError:
    with pytest.raises(InferError) as caught:
        bench.infer(*arguments, **fields)
    return caught.value
