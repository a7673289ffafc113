"""Iterative sequences: a request that is executed again until its model answers it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from tests.unit.deployments.scheduling.sequence.sequence_bench import (
    CONTROLS,
    STATE,
    SequenceBench,
    config,
    output,
)

COUNTDOWN = """
import threading
import numpy as np
from app.core.tensors import InferResponse, Tensor
from backends.base import Backend

turns = []
gate = threading.Event()


class TritonBackend(Backend):
    def instance_execute(self, instance, requests):
        for request in requests:
            inputs = {tensor.name: tensor.array().ravel() for tensor in request.infer.inputs}
            started = bool(inputs["START"][0])
            left = int(inputs["INPUT"][0] if started else inputs["HISTORY_IN"][0])
            turns.append((int(inputs["CORRID"][0]), started, left))
            state = Tensor.from_array("HISTORY_OUT", np.array([[left - 1]], np.int64))
            shown = Tensor.from_array("OUTPUT", np.array([[left]], np.int64))
            if left:
                request.rescheduled = True
                request.deliver(InferResponse(outputs=(state,), final=False))
            else:
                request.deliver(InferResponse(outputs=(shown,)))
"""
ITERATIVE = "iterative_sequence: true\n" + CONTROLS + STATE


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SequenceBench]:
    made = SequenceBench(tmp_path, COUNTDOWN, "countdown_probe")
    yield made
    made.close()


def load(bench: SequenceBench, sequence: str) -> None:
    bench.load(config(sequence).replace("sequence_probe", "countdown_probe"))


def test_executed_until_it_is_answered(bench: SequenceBench) -> None:
    load(bench, ITERATIVE)
    first, second = bench.submit(0, 3)[0], bench.submit(0, 2)[0]
    assert (output(first), output(second)) == (0, 0)
    turns = bench.backend.turns
    assert [(started, left) for number, started, left in turns if number == 1] == [
        (True, 3),
        (False, 2),
        (False, 1),
        (False, 0),
    ]
    assert [left for number, _, left in turns if number == 2] == [2, 1, 0]


def test_cancellation_between_two_executions_ends_the_request(bench: SequenceBench) -> None:
    load(bench, ITERATIVE)
    answer, cancel = bench.submit(0, 10**9)
    cancel()
    error = answer.result(60).failure
    assert error is not None and error.code is ErrorCode.CANCELLED
    assert bench.infer(0, 1) == 0, "its slot is free"


def test_other_sequences_cannot_be_rescheduled(bench: SequenceBench) -> None:
    load(bench, CONTROLS + STATE)
    with pytest.raises(InferError, match="Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE"):
        bench.infer(1, 3, start=True)
