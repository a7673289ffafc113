"""Whatever happens to sequences, each sees its own past, all of it, and nothing else.

Every request carries a number of its own, and the model keeps the numbers it has seen twice: as implicit
state, and by itself, told of the end of sequences. It keeps them by instance: an id that is used again may
come to another one before the first is told. It answers them, so a value that comes from another sequence,
or from an earlier one of the same id, or that is missing, shows in the answer.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.core.errors import InferError
from app.core.failures import CANCELLED, SEQUENCE_EXPIRED, TIMEOUT
from app.core.tensors import InferResponse
from tests.unit.deployments.scheduling.sequence.sequence_bench import SequenceBench, config
from tests.waiting import block_until

HISTORIAN = """
import threading
import numpy as np
from app.core.errors import internal
from app.core.tensors import InferResponse, Tensor, failed
from backends.base import Backend

own = {}
gate = threading.Event()
gate.set()


class TritonBackend(Backend):
    def instance_execute(self, instance, requests):
        assert gate.wait(60)
        for request in requests:
            try:
                request.deliver(self.answer(instance.name, request.infer))
            except Exception as error:
                request.deliver(failed(error))

    def answer(self, place, infer):
        inputs = {tensor.name: tensor.array().ravel()[0] for tensor in infer.inputs}
        past, number = inputs["HISTORY_IN"], int(inputs["INPUT"])
        if not inputs.get("READY", True):
            assert past == b"" and number == 0, "a row without a request"
            return InferResponse()
        life = (place, infer.sequence_id)
        if infer.sequence_start:
            own[life] = b""
        assert past == own[life], (past, own[life])
        if number < 0:
            raise internal("a bad input")
        own[life] = history = past + b"%d " % number
        shape = next(tensor.shape for tensor in infer.inputs if tensor.name == "INPUT")
        array = np.full(shape, history, object)
        outputs = tuple(Tensor.from_array(name, array) for name in ("OUTPUT", "HISTORY_OUT"))
        return InferResponse(outputs=outputs)

    def sequence_finalize(self, instance, sequence_id):
        own.pop((instance.name, sequence_id), None)
"""
STATE = 'state { input_name: "HISTORY_IN" output_name: "HISTORY_OUT" data_type: TYPE_STRING dims: [ 1 ] }\n'
READY = 'control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }'
IDLE_S = 0.003
IDLE = f"max_sequence_idle_microseconds: {round(IDLE_S * 1e6)}\n"
SETUPS = {
    "direct": (IDLE + "direct {}" + STATE + READY, 2, 2),
    "one-slot": (IDLE + "direct {}" + STATE, 0, 1),
    "oldest": (IDLE + "oldest { max_candidate_sequences: 2 }" + STATE, 4, 2),
}
IDS: tuple[int | str, ...] = (2**64 - 1, 1, "1")
SENT: dict[str, dict[str, Any]] = {
    "start": {"start": True},
    "next": {},
    "end": {"end": True},
    "only": {"start": True, "end": True},
    "fail": {},
    "impatient": {"timeout_us": 1},  # in the backlog
    "impatient start": {"start": True, "timeout_us": 1},
    "late": {"deadline": 1e-9},
    "cancelled": {},
    "cancelled start": {"start": True},
}
TOGETHER = {"whole": ("start", "next", "end"), "broken": ("start", "next", "cancelled", "next", "end")}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([*SENT, *TOGETHER, *TOGETHER]), st.sampled_from(range(len(IDS)))),
        st.tuples(st.sampled_from(["hold", "hold", "free", "killed", "rest", "wait", "no id"]), st.just(0)),
    ),
    min_size=1,
    max_size=40,
)


@pytest.fixture(params=SETUPS)
def bench(request: pytest.FixtureRequest) -> Iterator[SequenceBench]:
    with tempfile.TemporaryDirectory() as directory:
        made = SequenceBench(Path(directory), HISTORIAN, "historian")
        sequence, rows, count = SETUPS[request.param]
        made.text = config(sequence, rows, count, backend="historian").replace(
            'output { name: "OUTPUT" data_type: TYPE_INT64', 'output { name: "OUTPUT" data_type: TYPE_STRING'
        )
        made.load(made.text)
        yield made
        made.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(steps=[("start", 0), ("broken", 2), ("rest", 0), ("start", 2), ("next", 2)])
@given(steps=STEPS)
def test_sequence_sees_its_own_state_only(bench: SequenceBench, steps: list[tuple[str, int]]) -> None:
    clients = Clients(bench)
    for step, place in steps:
        clients.do(step, place)
    for place in range(len(IDS)):
        clients.do("end", place)
    clients.wait()
    own = bench.backend.own
    block_until(lambda: not own, "entries of ended sequences are kept")


class Clients:
    """What was asked, by sequence: the numbers of its requests in order, and their answers."""

    def __init__(self, bench: SequenceBench) -> None:
        self._bench = bench
        self._lives: list[list[tuple[int, Future[InferResponse]]]] = []
        self._current: dict[int, list[tuple[int, Future[InferResponse]]]] = {}
        self._number = 0

    def do(self, step: str, place: int) -> None:
        bench = self._bench
        if step in SENT:
            self._send(step, place)
        elif step in TOGETHER:
            for part in TOGETHER[step]:
                self._send(part, place)
        elif step == "hold":
            bench.hold()
        elif step == "free":
            bench.free()
        elif step == "rest":
            self.wait()
            time.sleep(2 * IDLE_S)  # the idle timer of the sequences expires
        elif step == "no id":
            with pytest.raises(InferError, match="must specify a non-zero or non-empty correlation ID"):
                bench.submit(0, 1, start=True)
        else:
            self.wait()
            if step == "killed":
                assert bench.model is not None
                bench.model.close(5)
                bench.backend.own.clear()
                bench.load(bench.text)

    def _send(self, step: str, place: int) -> None:
        self._number += 1
        number = -self._number if step == "fail" else self._number
        try:
            answer, cancel = self._bench.submit(IDS[place], number, **SENT[step])
        except InferError as error:
            shed = "is overloaded" in error.message and step.startswith("impatient")  # on a slow machine
            assert shed or ("must specify the START flag" in error.message and "start" not in SENT[step])
            return
        if "start" in SENT[step]:
            self._current[place] = []
            self._lives.append(self._current[place])
        self._current[place].append((self._number, answer))
        if step.startswith("cancelled"):
            cancel()

    def wait(self) -> None:
        """Every answer is there, and each is what its own sequence makes it."""
        self._bench.free()
        for life in self._lives:
            past, over = "", False
            for number, answer in life:
                response = answer.result(60)
                if response.failure is None:
                    past += f"{number} "
                    assert response.outputs[0].array().ravel()[0].decode() == past
                    assert not over, "it goes on without a request that was lost"
                else:
                    over = over or response.failure in _LOSSES
                    assert over or response.failure.message == "a bad input", response.failure
        self._lives = list(self._current.values())


_LOSSES = (CANCELLED, TIMEOUT, SEQUENCE_EXPIRED)
