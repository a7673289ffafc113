"""When a sequence without further requests ends, and its slot is another's."""

import pytest

from deployments.scheduling.sequence import idle_timeouts
from tests.unit.deployments.scheduling.sequence.sequence_bench import (
    CONTROLS,
    STATE,
    SequenceBench,
    config,
    output,
    refusal,
)

LONG = "max_sequence_idle_microseconds: 60000000\n"
IDLE_S = 60.0


def pass_time(bench: SequenceBench, seconds: float = 1.1 * IDLE_S) -> None:
    """Have all sequences be idle for so much longer, as if their requests had come earlier."""
    idle: idle_timeouts.IdleTimeouts = bench.model.scheduler._idle  # type: ignore[union-attr]

    async def pass_it() -> None:
        for sequence in idle._since:
            idle._since[sequence] -= seconds
        if idle._timer is not None:
            idle._timer.cancel()
        idle._expire()

    bench.plane.call(pass_it(), 60)


def test_idle_sequence_loses_its_slot(bench: SequenceBench) -> None:
    bench.load(config("max_sequence_idle_microseconds: 20000 direct {}" + CONTROLS + STATE, max_batch_size=0))
    bench.infer(1, 1, start=True)
    assert bench.infer(2, 2, start=True) == 2
    assert [batch[1]["END"] for batch in bench.backend.batches] == [[0.0], [0.0]], "without END"
    assert refusal(bench, 1, 1).message == (
        "inference request for sequence 1 to model 'm' must specify the START flag on the first request of"
        " the sequence"
    )


def test_sequence_ends_when_an_execution_outlasts_the_idle_time(bench: SequenceBench) -> None:
    model = bench.load(config(LONG + "direct {}" + CONTROLS + STATE, max_batch_size=0))
    bench.infer(1, 1, start=True)
    bench.hold()
    running, queued = bench.submit(1, 1)[0], bench.submit(1, 1)[0]
    bench.entered()
    pass_time(bench)
    assert "must specify the START flag" in refusal(bench, 1, 1).message
    anew = bench.submit(1, 7, start=True)[0]
    bench.free()
    assert [output(answer) for answer in (running, queued, anew)] == [2, 3, 7]
    pass_time(bench)
    assert model.scheduler.sequences == 0


def test_wait_for_a_slot_is_not_counted_as_idle_time(bench: SequenceBench) -> None:
    bench.load(config(LONG + "direct {}" + CONTROLS + STATE, max_batch_size=0))
    bench.hold()
    first = bench.submit(1, 1, start=True, end=True)[0]
    bench.entered()
    second = bench.submit(2, 5, start=True)[0]
    pass_time(bench)
    bench.free()
    assert (output(first), output(second)) == (1, 5)
    assert bench.infer(2, 1) == 6


@pytest.fixture
def abandoned(bench: SequenceBench) -> SequenceBench:
    """A model with one slot, whose sequence 1 has it and was left by its client during an execution."""
    bench.load(config(LONG + "direct {}" + CONTROLS + STATE, max_batch_size=0))
    bench.backend.gate.clear()
    answer, cancel = bench.submit(1, 1, start=True)
    assert bench.backend.entered.acquire(timeout=60)
    cancel()
    bench.backend.gate.set()
    answer.result(60)
    return bench


def test_a_sequence_whose_client_left_makes_room_for_others(abandoned: SequenceBench) -> None:
    """Its slot was idle for the whole timeout, under overload too."""
    assert abandoned.infer(2, 2, start=True, end=True) == 2
    assert "must specify the START flag" in refusal(abandoned, 1, 1).message


def test_a_sequence_whose_client_comes_back_goes_on(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(idle_timeouts, "LEFT_S", 30.0)
    abandoned: SequenceBench = request.getfixturevalue("abandoned")
    waiting = abandoned.submit(2, 2, start=True)[0]
    assert abandoned.infer(1, 1) == 2
    assert abandoned.infer(1, 1, end=True) == 3
    waiting.result(60)
