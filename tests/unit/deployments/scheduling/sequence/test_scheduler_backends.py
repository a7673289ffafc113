"""Sequences of every backend: the teaching ones, TorchScript, Python and custom ones."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.core.errors import InferError
from app.core.tensors import InferResponse
from backends.teaching import iterative_sequence
from tests.unit.deployments.scheduling.sequence.sequence_bench import (
    CONTROLS,
    STATE,
    SequenceBench,
    config,
    output,
    refusal,
)
from tests.waiting import block_until

LONG = "max_sequence_idle_microseconds: 60000000\n"
SHORT = "max_sequence_idle_microseconds: 20000\n"
DIRECT = "direct {}\n"
OLDEST = "oldest { max_candidate_sequences: 8 }\n"
CONTROL = 'control_input { name: "%s" control { kind: CONTROL_SEQUENCE_%s int32_false_true: [ 0, 1 ] } }\n'
INT32_CONTROLS = "".join(CONTROL % (name, name) for name in ("START", "END", "READY"))
CORRID = 'control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }\n'
STRING_CORRID = CORRID.replace("TYPE_UINT64", "TYPE_STRING")
DECOUPLED = "model_transaction_policy { decoupled: true }"

Load = Callable[..., SequenceBench]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    made: list[SequenceBench] = []

    def load(
        backend: str, sequence: str, kind: str = "TYPE_INT32", source: str = "", **more: Any
    ) -> SequenceBench:
        bench = SequenceBench(tmp_path)
        bench.dtype = np.int32 if kind == "TYPE_INT32" else np.int64
        made.append(bench)
        if source and backend == "python":
            (tmp_path / "m" / "1" / "model.py").write_text(source)
        elif source:
            (tmp_path / "backends" / backend).mkdir()
            (tmp_path / "backends" / backend / "backend.py").write_text(source)
        bench.load(config(sequence, backend=backend, kind=kind, **more))
        return bench

    yield load
    for bench in made:
        bench.close()


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_sequence_backend_adds_up(load: Load, strategy: str) -> None:
    bench = load("sequence", LONG + strategy + INT32_CONTROLS)
    names: tuple[int | str, ...] = (7, "seven", 2**64 - 1)
    for turn in range(3):
        for place, name in enumerate(names):
            assert bench.infer(name, 10**place, start=turn == 0) == 10**place * (turn + 1)
    assert bench.infer("seven", 5, start=True) == 5, "START forgets"
    assert bench.infer("seven", -7, end=True) == -2
    assert bench.infer(7, 2**31 - 1) == 2 - 2**31, "32 bits"


@pytest.mark.parametrize(
    ("sequence_id", "corrid", "added"), [(9, CORRID, 9), ("12", STRING_CORRID, 12), (2**40 + 3, CORRID, 3)]
)
def test_dyna_sequence_adds_its_id_at_the_end(
    load: Load, sequence_id: int | str, corrid: str, added: int
) -> None:
    bench = load("dyna_sequence", LONG + OLDEST + INT32_CONTROLS + corrid)
    for _round in range(2):
        assert bench.infer(sequence_id, 1, start=True) == 1
        assert bench.infer(sequence_id, 2) == 3
        assert bench.infer(sequence_id, 3, end=True) == 6 + added
    assert bench.infer(sequence_id, 1, start=True, end=True) == 1 + added


def test_dyna_sequence_requires_digits(load: Load) -> None:
    bench = load("dyna_sequence", LONG + OLDEST + INT32_CONTROLS + STRING_CORRID)
    assert bench.infer("abc", 1, start=True) == 1
    assert refusal(bench, "abc", 1, end=True).message == (
        "'dyna_sequence' backend needs a correlation id of digits, got 'abc'"
    )


@pytest.mark.parametrize(
    ("backend", "controls", "message"),
    [
        ("sequence", INT32_CONTROLS.replace('"READY"', '"ON"'), "expected control 'READY' of kind"),
        ("sequence", CONTROLS, "expected control 'READY' to have 'int32_false_true'"),
        ("dyna_sequence", INT32_CONTROLS, "expected control 'CORRID' of datatype TYPE_UINT64 or TYPE_STRING"),
    ],
)
def test_teaching_backends_check_their_configuration(
    load: Load, backend: str, controls: str, message: str
) -> None:
    with pytest.raises(InferError, match=message):
        load(backend, LONG + DIRECT + controls)


def test_teaching_backends_check_their_tensors(load: Load) -> None:
    with pytest.raises(InferError, match="expected input datatype to be TYPE_INT32, got TYPE_INT64"):
        load("sequence", LONG + DIRECT + INT32_CONTROLS, kind="TYPE_INT64")


@pytest.mark.parametrize(("extra", "answers"), [(DECOUPLED, [2, 1, 0]), ("", [0])])
def test_iterative_sequence_counts_down(
    load: Load, extra: str, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    bench = load("iterative_sequence", "iterative_sequence: true\n" + DIRECT, extra=extra)
    assert bench.infer_all(0, 3) == answers
    assert bench.infer_all(0, 1) == [0]
    assert slept.count(0.5) == 4


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_iterative_sequence_fails_with_another_scheduler(
    load: Load, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterative_sequence, "RESCHEDULE_DELAY_S", 0.0)
    bench = load("iterative_sequence", LONG + strategy)
    assert refusal(bench, 1, 3, start=True).message.startswith(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"
    )


class Accumulator(torch.nn.Module):
    """OUTPUT and the next state are INPUT + state, plus 1000 where a sequence starts."""

    def forward(
        self, value: torch.Tensor, start: torch.Tensor, corrid: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total = value + state + 1000 * start
        return total, total.clone(), corrid


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_torchscript_has_controls_and_implicit_state(load: Load, tmp_path: Path, strategy: str) -> None:
    bench = SequenceBench(tmp_path)
    bench.input_name = "INPUT__0"
    jit: Any = torch.jit
    jit.script(Accumulator()).save(str(tmp_path / "m" / "1" / "model.pt"))
    sequence = LONG + strategy + CONTROL % ("START__1", "START") + CORRID.replace('CORRID"', 'ID__2"', 1)
    sequence += 'state { input_name: "STATE__3" output_name: "STATE__1" data_type: TYPE_INT64 dims: [ 1 ] }'
    extra = 'platform: "pytorch_libtorch" output { name: "ID__2" data_type: TYPE_INT64 dims: [ 1 ] }'
    text = config(sequence.replace("UINT64", "INT64"), backend="pytorch", extra=extra)
    bench.load(text.replace('"INPUT"', '"INPUT__0"').replace('"OUTPUT"', '"OUTPUT__0"'))
    try:
        for name in (3, 4):
            answer = bench.submit(name, name, start=True)[0]
            assert (output(answer, "OUTPUT__0"), output(answer, "ID__2")) == (1000 + name, name)
        answers = [bench.submit(name, 1)[0] for name in (3, 4, 3)]
        assert [output(answer, "OUTPUT__0") for answer in answers] == [1004, 1005, 1005]
        assert [tensor.name for tensor in answers[0].result().outputs] == ["OUTPUT__0", "ID__2"]
    finally:
        bench.close()


PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    ended = []

    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        name, flags = request.correlation_id(), request.flags()
        control = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        assert control["START"].item() == bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
        assert control["END"].item() == bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        assert control["CORRID"].item() == (name.encode() if isinstance(name, str) else name)
        value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        if control["START"].item():
            assert name not in self.totals
        self.totals[name] = self.totals.get(name, 0) + value
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", self.totals[name])])

    def finalize_sequence(self, correlation_id):
        TritonPythonModel.ended.append(correlation_id)
        del self.totals[correlation_id]
"""


@pytest.mark.parametrize(("corrid", "first", "second"), [(CORRID, 1, 2), (STRING_CORRID, "one", "two")])
def test_python_model_keeps_its_own_state(
    load: Load, corrid: str, first: int | str, second: int | str
) -> None:
    bench = load("python", SHORT + OLDEST + INT32_CONTROLS + corrid, source=PYTHON)
    assert [bench.infer(first, 1, start=True), bench.infer(second, 10, start=True)] == [1, 10]
    assert [bench.infer(first, 1, end=True), bench.infer(second, 10)] == [2, 20]
    model = _python_class()
    block_until(
        lambda: model.ended == [first, second], "the model is told: by END, and when it rested for too long"
    )
    assert bench.infer(first, 5, start=True) == 5


def test_sequence_of_the_same_id_starts_after_the_end(load: Load) -> None:
    bench = load("python", LONG + OLDEST + INT32_CONTROLS + CORRID, source=PYTHON)
    answers = [bench.submit(1, 1, start=turn % 2 == 0, end=turn % 2 == 1)[0] for turn in range(20)]
    assert [output(answer) for answer in answers] == [1, 2] * 10
    block_until(lambda: _python_class().ended == [1] * 10, "told of each end")


def _python_class() -> Any:
    return sys.modules["1.model"].TritonPythonModel


PYTHON_DECOUPLED = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        for request in requests:
            name = request.correlation_id()
            value = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().item()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.totals[name] = 0
            first = self.totals[name]
            self.totals[name] += value
            threading.Thread(target=self.send, args=(request.get_response_sender(), first, value)).start()

    def send(self, sender, first, count):
        for number in range(first, first + count):
            output = pb_utils.Tensor("OUTPUT", np.array([[number]], np.int32))
            sender.send(pb_utils.InferenceResponse([output]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_decoupled_python_model(load: Load, strategy: str) -> None:
    bench = load("python", LONG + strategy + STRING_CORRID, source=PYTHON_DECOUPLED, extra=DECOUPLED)
    assert bench.infer_all("a", 3, start=True) == [0, 1, 2]
    assert bench.infer_all("b", 1, start=True) == [0]
    assert bench.infer_all("a", 0) == []
    assert bench.infer_all("a", 2, end=True) == [3, 4]


PYTHON_LATE = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

later = threading.Event()


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            work = (request.get_response_sender(), request.correlation_id())
            if request.correlation_id() == "late":
                threading.Thread(target=lambda: later.wait(60) and self.send(*work)).start()
            else:
                self.send(*work)

    def send(self, sender, name):
        output = pb_utils.Tensor("OUTPUT", np.array([[0]], np.int32))
        sender.send(pb_utils.InferenceResponse([output]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("ordered", [False, True])
def test_responses_of_the_oldest_strategy_keep_their_order(load: Load, ordered: bool) -> None:
    strategy = f"oldest {{ max_candidate_sequences: 4 preserve_ordering: {str(ordered).lower()} }}"
    bench = load("python", LONG + strategy + STRING_CORRID, source=PYTHON_LATE, extra=DECOUPLED)
    late = bench.submit("late", 1, start=True, end=True)[0]
    other = bench.submit("other", 1, start=True, end=True)[0]
    if not ordered:
        other.result(60)
        assert not late.done()
    else:
        wait([other], timeout=0.05)
        assert not other.done()
    sys.modules["1.model"].later.set()
    assert late.result(60).failure is None and other.result(60).failure is None


@pytest.mark.parametrize("end", [False, True])
def test_cancellation_after_execution_does_not_end_the_sequence(load: Load, end: bool) -> None:
    bench = load("python", LONG + OLDEST + STRING_CORRID, source=PYTHON_LATE, extra=DECOUPLED)
    late, cancel = bench.submit("late", 1, start=True, end=end)
    bench.infer("other", 1, start=True, end=True)
    cancel()
    sys.modules["1.model"].later.set()
    assert late.result(60).failure is None
    bench.infer("late", 1, start=end)


PYTHON_ITERATIVE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        return [self.turn(request) for request in requests]

    def turn(self, request):
        name, start = request.correlation_id(), request.flags() & 1
        if start:
            assert name not in self.left
            self.left[name] = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().item()
        self.left[name] -= 1
        if self.left[name]:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        del self.left[name]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[name]], np.int32))])
"""


def test_iterative_python_model(load: Load) -> None:
    bench = load("python", "iterative_sequence: true\n" + OLDEST, source=PYTHON_ITERATIVE)
    answers = [bench.submit(0, turns)[0] for turns in (5, 1, 3)]
    assert sorted(output(answer) for answer in answers) == [1, 2, 3], "each has an id of its own"


LATE = """
import threading
import numpy as np
from app.core.tensors import InferResponse, Tensor
from backends.base import Backend

proceed = threading.Semaphore(0)
executed = []


class TritonBackend(Backend):
    def instance_execute(self, instance, requests):
        for request in requests:
            inputs = {tensor.name: int(tensor.array().ravel()[0]) for tensor in request.infer.inputs}
            executed.append((request.infer.sequence_id, inputs["INPUT"]))
            request.detached = True
            threading.Thread(target=answer, args=(request, inputs)).start()


def answer(request, inputs):
    assert proceed.acquire(timeout=60)
    total = np.array([[inputs["INPUT"] + inputs["HISTORY_IN"]]], np.int64)
    outputs = (Tensor.from_array("OUTPUT", total), Tensor.from_array("HISTORY_OUT", total))
    request.deliver(InferResponse(outputs=outputs, final=False))
    assert proceed.acquire(timeout=60)
    request.deliver(InferResponse())
"""


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_next_request_waits_for_a_late_state(load: Load, strategy: str) -> None:
    """A decoupled model may answer after its execution: the next request needs the state of that answer."""
    bench = load("late_probe", LONG + strategy + STATE, kind="TYPE_INT64", source=LATE, extra=DECOUPLED)
    bench.name = "late_probe"
    kept: list[InferResponse] = []
    first, second = bench.submit(1, 1, start=True)[0], bench.submit(1, 2, keep=kept)[0]
    other = bench.submit(2, 5, start=True)[0]
    block_until(lambda: len(bench.backend.executed) == 2, "the sequences do not wait for one another")
    assert sorted(bench.backend.executed) == [(1, 1), (2, 5)], "a sequence waits for its own"
    bench.backend.proceed.release(6)
    for answer in (first, second, other):
        assert answer.result(60).failure is None
    assert int(kept[0].outputs[0].array()[0, 0]) == 3
