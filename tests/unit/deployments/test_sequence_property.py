"""Whatever happens to sequences, none ever sees a value of another."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.errors import InferError
from app.core.tensors import InferResponse
from tests.unit.deployments.sequence_bench import STATE, SequenceBench, config, output

IDS: tuple[int | str, ...] = (1, 2**63 - 1, 2**64 - 1, "1", "s" * 128)
IDLE = "max_sequence_idle_microseconds: 3000\n"
SETUPS = (
    (IDLE + "direct {}" + STATE, 2, 2),
    (IDLE + "direct {}" + STATE, 0, 1),
    (IDLE + "oldest { max_candidate_sequences: 2 }" + STATE, 4, 2),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(range(len(IDS))),
        st.sampled_from(("start", "next", "next", "end", "cancel", "fail", "late", "restart", "pause")),
    ),
    min_size=1,
    max_size=30,
)
BITS = 8


@pytest.fixture(params=SETUPS, ids=["direct", "one-slot", "oldest"])
def bench(request: pytest.FixtureRequest) -> Iterator[SequenceBench]:
    with tempfile.TemporaryDirectory() as directory:
        made = SequenceBench(Path(directory))
        sequence, rows, count = request.param
        made.text = config(sequence, rows, count)
        made.load(made.text)
        yield made
        made.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_no_sequence_sees_another(bench: SequenceBench, steps: list[tuple[int, str]]) -> None:
    """Each sequence counts in a byte of its own: another byte that is set came from another sequence."""
    answers: list[tuple[int, Future[InferResponse]]] = []
    for place, step in steps:
        if step == "restart":  # as a replica that was killed: nothing is left of it
            wait(answers)
            assert bench.model is not None
            bench.model.close(5)
            bench.load(bench.text)
        elif step == "pause":
            wait(answers)
        else:
            send(bench, answers, place, step)
    wait(answers)
    for place in range(len(IDS)):  # ends what still lives, so that the next example starts with free slots
        send(bench, answers, place, "end")
    wait(answers)


def send(
    bench: SequenceBench, answers: list[tuple[int, Future[InferResponse]]], place: int, step: str
) -> None:
    value = -1 if step == "fail" else 1 << BITS * place
    timeout = 1 if step == "late" else 0
    try:
        answer, cancel = bench.submit(IDS[place], value, step == "start", step == "end", timeout_us=timeout)
    except InferError as error:
        assert "must specify the START flag" in error.message
        return
    answers.append((place, answer))
    if step == "cancel":
        cancel()


def wait(answers: list[tuple[int, Future[InferResponse]]]) -> None:
    for place, answer in answers:
        if answer.result(5).error is None:
            total = output(answer)
            count, rest = divmod(total, 1 << BITS * place)
            assert rest == 0 and 1 <= count < 1 << BITS, (place, hex(total))
    answers.clear()
