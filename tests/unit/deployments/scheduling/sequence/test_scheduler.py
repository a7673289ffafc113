"""The sequence batcher in a served model: controls, slots, backlog, state, ends of sequences."""

import time

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.replica.served_model import ServedModel
from tests.unit.deployments.scheduling.sequence.sequence_bench import (
    CONTROLS,
    STATE,
    SequenceBench,
    config,
    output,
    refusal,
)
from tests.waiting import let_run

LONG = "max_sequence_idle_microseconds: 60000000\n"
ONE_SLOT = LONG + "direct {}" + CONTROLS + STATE


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_state_is_kept_per_sequence(bench: SequenceBench, strategy: str, max_batch_size: int) -> None:
    bench.load(config(LONG + strategy + STATE, max_batch_size))
    if max_batch_size == 0 and strategy.startswith("direct"):
        ids: tuple[int | str, ...] = (7,)
    else:
        ids = (7, "seven", 2**64 - 1)
    for turn in range(3):
        for place, name in enumerate(ids):
            answer = bench.infer(name, 10**place, start=turn == 0)
            assert answer == 10**place * (turn + 1)
    assert bench.infer(7, 5, start=True) == 5, "START forgets"
    assert bench.infer(7, 1, end=True) == 6


def test_state_is_no_output_unless_configured(bench: SequenceBench) -> None:
    bench.load(config(LONG + "direct {}" + STATE))
    answer = bench.submit(1, 1, start=True)[0].result(60)
    assert [tensor.name for tensor in answer.outputs] == ["OUTPUT"]


def test_state_that_is_an_output(bench: SequenceBench) -> None:
    visible = 'output { name: "HISTORY_OUT" data_type: TYPE_INT64 dims: [ 1 ] }'
    bench.load(config(LONG + "direct {}" + STATE, extra=visible))
    bench.infer(1, 1, start=True)
    assert output(bench.submit(1, 4)[0], "HISTORY_OUT") == 5


def test_initial_state_is_read_from_a_file(bench: SequenceBench) -> None:
    folder = bench.directory / "m" / "initial_state"
    folder.mkdir()
    (folder / "forty").write_bytes((40).to_bytes(8, "little"))
    bench.load(config(LONG + "direct {}" + STATE.replace("zero_data: true", 'data_file: "forty"')))
    assert bench.infer(1, 2, start=True) == 42
    (folder / "forty").write_bytes(b"123")
    with pytest.raises(InferError, match="has 3 bytes, its configuration needs 8"):
        bench.load(config(LONG + STATE.replace("zero_data: true", 'data_file: "forty"')))


def test_controls(bench: SequenceBench) -> None:
    bench.load(config(LONG + "direct {}" + CONTROLS))
    big = 2**64 - 1
    bench.infer(big, 1, start=True)
    bench.infer(big, 2)
    bench.infer(big, 3, end=True)
    seen = [inputs for _, inputs in bench.backend.batches]
    assert [s["START"] for s in seen] == [[1], [0], [0]]
    assert [s["END"] for s in seen] == [[0.0], [0.0], [1.0]]
    assert [s["READY"] for s in seen] == [[True]] * 3
    assert [s["CORRID"] for s in seen] == [[big]] * 3


@pytest.mark.parametrize(
    ("kind", "given", "seen"),
    [
        ("TYPE_INT64", 2**63 - 1, 2**63 - 1),
        ("TYPE_UINT32", 2**32 - 1, 2**32 - 1),
        ("TYPE_INT32", 5, 5),
        ("TYPE_STRING", "s" * 128, b"s" * 128),
    ],
)
def test_types_of_correlation_ids(bench: SequenceBench, kind: str, given: int | str, seen: object) -> None:
    bench.load(config(LONG + "direct {}" + CONTROLS.replace("TYPE_UINT64", kind)))
    bench.infer(given, 1, start=True)
    assert bench.backend.batches[0][1]["CORRID"] == [seen]


def test_type_of_correlation_id_differs(bench: SequenceBench) -> None:
    bench.load(config(LONG + "direct {}" + CONTROLS))
    assert refusal(bench, "text", 1, start=True).message == (
        "[request id: <id_unknown>] sequence batching control 'CORRID' data-type is 'BYTES', but model 'm'"
        " expects 'UINT64'"
    )


def test_padding_fills_empty_slots(bench: SequenceBench) -> None:
    bench.load(config(LONG + "direct {}" + CONTROLS + STATE))
    for number in (1, 2, 3):
        bench.infer(number, 10 * number, start=True)
    bench.infer(1, 0, end=True)
    assert bench.infer(3, 5) == 35
    inputs = bench.backend.batches[-1][1]
    assert inputs["READY"] == [False, False, True]
    assert inputs["CORRID"] == [0, 0, 3]
    assert inputs["INPUT"] == [0, 0, 5] and inputs["HISTORY_IN"] == [0, 0, 30]
    assert bench.model is not None
    counters = bench.model.statistics.report()
    assert counters.batches[3].compute_infer.count == 2
    assert counters.inference_count == counters.success.count == 5, "empty slots are not counted"
    assert bench.infer(2, 7) == 27
    assert bench.backend.batches[-1][1]["READY"] == [False, True], "no row above the last request"
    assert bench.infer(4, 1, start=True) == 1
    assert bench.backend.batches[-1][1]["READY"][0] is True, "the lowest free slot"


def test_without_ready_there_is_no_padding(bench: SequenceBench) -> None:
    bench.load(config(LONG + "direct {}" + STATE))
    for number in (1, 2, 3):
        bench.infer(number, number, start=True)
    assert bench.infer(3, 1) == 4
    assert bench.backend.batches[-1][1]["INPUT"] == [1]


def test_ready_sequences_share_a_batch(bench: SequenceBench) -> None:
    bench.load(config(LONG + "oldest { max_candidate_sequences: 8 }" + STATE))
    bench.hold()
    first = bench.submit(1, 1, start=True)[0]
    bench.entered()
    later = [bench.submit(number, number, start=True)[0] for number in (2, 3, 4)]
    second = bench.submit(2, 100)[0]
    bench.free()
    assert [output(answer) for answer in (first, *later, second)] == [1, 2, 3, 4, 102]
    assert [batch[1]["INPUT"] for batch in bench.backend.batches] == [[1], [2, 3, 4], [100]]


def test_utilization_waits_for_slots(bench: SequenceBench) -> None:
    direct = "direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 60000000 }"
    bench.load(config(LONG + direct + STATE))
    first = bench.submit(1, 1, start=True)[0]
    assert not first.done() and not bench.backend.batches
    assert bench.infer(2, 2, start=True) == 2
    assert output(first) == 1 and bench.backend.batches[0][1]["INPUT"] == [1, 2]


def test_utilization_waits_no_longer_than_the_delay(bench: SequenceBench) -> None:
    direct = "direct { minimum_slot_utilization: 1 max_queue_delay_microseconds: 1000 }"
    bench.load(config(LONG + direct + STATE))
    assert bench.infer(1, 1, start=True) == 1


def test_preferred_size_of_the_oldest_strategy(bench: SequenceBench) -> None:
    """It ends the delay; what it leaves over waits."""
    waits = "preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 60000000"
    bench.load(config(LONG + f"oldest {{ max_candidate_sequences: 4 {waits} }}" + STATE))
    first = bench.submit(1, 1, start=True)[0]
    assert not first.done() and not bench.backend.batches
    assert bench.infer(2, 2, start=True) == 2
    assert output(first) == 1 and bench.backend.batches[0][1]["INPUT"] == [1, 2]


def test_delay_of_the_oldest_strategy(bench: SequenceBench) -> None:
    waits = "preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 1000"
    bench.load(config(LONG + f"oldest {{ max_candidate_sequences: 4 {waits} }}" + STATE))
    assert bench.infer(1, 1, start=True) == 1


def test_order_within_a_sequence(bench: SequenceBench) -> None:
    bench.load(config(LONG + "oldest { max_candidate_sequences: 2 }" + STATE, count=2))
    answers = [bench.submit(1, 1, start=number == 0)[0] for number in range(50)]
    assert [output(answer) for answer in answers] == list(range(1, 51))
    assert len({name for name, _ in bench.backend.batches}) == 1, "one instance for its life"


def test_backlog_is_first_come_first_served(bench: SequenceBench) -> None:
    bench.load(config(ONE_SLOT, max_batch_size=0))
    bench.infer(1, 1, start=True)
    waiting = [bench.submit(number, number, start=True, end=True)[0] for number in (2, 3)]
    more = bench.submit(3, 9, start=True, end=True)[0]
    bench.plane.call(let_run(), 60)
    assert not any(answer.done() for answer in (*waiting, more))
    assert bench.infer(1, 1, end=True) == 2
    assert [output(answer) for answer in (*waiting, more)] == [2, 3, 9]
    assert [batch[1]["CORRID"] for batch in bench.backend.batches] == [[1], [1], [2], [3], [3]]


def test_age_of_the_queue_is_that_of_its_oldest_request(bench: SequenceBench) -> None:
    scheduler = bench.load(config(ONE_SLOT)).scheduler
    assert scheduler.queue_age_ns == 0
    bench.hold()
    executing, _ = bench.submit(1, 1, start=True)
    bench.entered()
    assert scheduler.queue_age_ns == 0
    before = time.monotonic_ns()
    in_backlog, _ = bench.submit(2, 1, start=True, end=True)
    after = time.monotonic_ns()
    behind, _ = bench.submit(1, 1, end=True)
    now = time.monotonic_ns()
    assert now - after <= scheduler.queue_age_ns <= time.monotonic_ns() - before
    bench.free()
    assert [output(answer) for answer in (executing, behind, in_backlog)] == [1, 2, 1]
    assert scheduler.queue_age_ns == 0


def test_reused_id_waits_in_the_backlog(bench: SequenceBench) -> None:
    """As in Triton: who pipelines short sequences of one id may not keep the slot from the others."""
    bench.load(config(ONE_SLOT, max_batch_size=0))
    bench.hold()
    mine = [bench.submit(1, 1, start=True, end=True)[0] for _ in range(3)]
    bench.entered()
    other = bench.submit(2, 2, start=True, end=True)[0]
    bench.free()
    assert [output(answer) for answer in (*mine, other)] == [1, 1, 1, 2]
    assert [batch[1]["CORRID"] for batch in bench.backend.batches] == [[1], [2], [1], [1]]


def test_reused_id_waits_for_the_end_of_its_sequence(bench: SequenceBench) -> None:
    bench.load(config(ONE_SLOT, count=2))
    bench.hold()
    first = bench.submit(1, 1, start=True, end=True)[0]
    bench.entered()
    second, cancel = bench.submit(1, 2, start=True, end=True)
    third = bench.submit(1, 4, start=True, end=True)[0]
    cancel()
    fourth = bench.submit(1, 8, start=True)[0]
    assert second.result(60).failure is not None
    assert len(bench.backend.batches) == 1, "slots are free, but the first sequence of that id is not over"
    bench.free()
    assert [output(answer) for answer in (first, third, fourth)] == [1, 4, 8]
    assert [batch[1]["INPUT"] for batch in bench.backend.batches] == [[1], [4], [8]]
    assert bench.infer(1, 1) == 9


@pytest.mark.parametrize("hook", ["2", "0"])
def test_backlog_hook_of_the_direct_strategy(
    bench: SequenceBench, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "3")
    monkeypatch.setenv("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", hook)
    bench.load(config(LONG + "direct {}" + STATE, max_batch_size=2))
    first = [bench.submit(number, number, start=True)[0] for number in (1, 2)]
    bench.submit(1, 0)
    if hook != "0":
        waiting = bench.submit(3, 3, start=True)[0]
        assert not bench.backend.batches and not any(answer.done() for answer in first)
        bench.submit(2, 0, end=True)
        assert not bench.backend.batches, "the slots have enough, the backlog has not"
        # An id that is used again waits in the backlog too.
        bench.submit(2, 0, start=True, end=True)
        assert output(waiting) == 3
    assert [output(answer) for answer in first] == [1, 2]
    assert bench.backend.batches[0][1]["INPUT"] == [1, 2]
    assert bench.infer(1, 1) == 2, "once only"


def test_delay_hook_of_the_oldest_strategy(bench: SequenceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "2")
    monkeypatch.setenv("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "5")
    bench.load(config(LONG + "oldest { max_candidate_sequences: 4 }" + STATE))
    answers = [bench.submit(1, 1, start=True)[0], bench.submit(1, 1)[0]]
    assert not bench.backend.batches, "a sequence has one request in the batcher"
    answers.append(bench.submit(2, 5, start=True)[0])
    assert [output(answer) for answer in answers] == [1, 2, 5]


def test_sequence_that_has_started_at_another_replica_ends(bench: SequenceBench) -> None:
    model = bench.load(config(ONE_SLOT))
    bench.infer(7, 1, start=True)
    bench.plane.call(_end(model, 7, 9), 60)
    assert model.scheduler.sequences == 0
    assert "must specify the START flag" in refusal(bench, 7, 1).message
    assert bench.infer(8, 2, start=True) == 2, "it has left its slot"


def test_requests_that_an_ended_sequence_has_are_executed(bench: SequenceBench) -> None:
    model = bench.load(config(ONE_SLOT))
    bench.infer(7, 1, start=True)
    bench.hold()
    answers = [bench.submit(7, 10)[0] for _ in range(2)]
    bench.entered()
    bench.plane.call(_end(model, 7), 60)
    bench.free()
    assert [output(answer) for answer in answers] == [11, 21]
    assert "must specify the START flag" in refusal(bench, 7, 1).message


async def _end(model: ServedModel, *ended: int | str) -> None:
    for each in ended:
        model.scheduler.end_sequence(each)


def test_backlog_expires(bench: SequenceBench) -> None:
    bench.load(config(ONE_SLOT, max_batch_size=0))
    bench.infer(1, 1, start=True)
    first = bench.submit(2, 1, start=True)[0]
    second = bench.submit(2, 1, timeout_us=1000)[0]
    for answer in (first, second):
        error = answer.result(60).failure
        assert error is not None and error.code is ErrorCode.UNAVAILABLE
        assert error.message == "timeout of the corresponding sequence has been expired"
    assert "must specify the START flag" in refusal(bench, 2, 1).message
    assert bench.infer(1, 1) == 2


def test_refusals(bench: SequenceBench) -> None:
    bench.load(config(ONE_SLOT))
    for sequence_id in (0, ""):
        error = refusal(bench, sequence_id, 1, start=True)
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message == (
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
        )
    error = refusal(bench, 1, 1, start=True, rows=2)
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == (
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
    )
    bench.infer(1, 1, start=True, end=True)
    assert refusal(bench, 1, 1).code is ErrorCode.INVALID_ARG


def test_queued_requests_are_limited(bench: SequenceBench) -> None:
    bench.load(config(ONE_SLOT, max_batch_size=0), max_pending_requests=2)
    bench.infer(1, 1, start=True)
    waiting = [bench.submit(number, 1, start=True, end=True)[0] for number in (2, 3)]
    error = refusal(bench, 4, 1, start=True)
    assert (error.code, error.message) == (
        ErrorCode.UNAVAILABLE,
        "[request id: <id_unknown>] Exceeds maximum queue size",
    )
    assert not any(answer.done() for answer in waiting)


def test_failed_execution_keeps_the_state(bench: SequenceBench) -> None:
    bench.load(config(ONE_SLOT))
    bench.infer(1, 3, start=True)
    assert refusal(bench, 1, -1).message == "a bad input"
    assert bench.infer(1, 4) == 7


def test_cancelled_request_ends_its_sequence(bench: SequenceBench) -> None:
    bench.load(config(ONE_SLOT))
    bench.infer(1, 1, start=True)
    bench.hold()
    running = bench.submit(1, 1)[0]
    bench.entered()
    queued, cancel = bench.submit(1, 1)
    after = bench.submit(1, 1)[0]
    cancel()
    bench.free()
    assert output(running) == 2
    for answer in (queued, after):
        error = answer.result(60).failure
        assert error is not None and error.code is ErrorCode.CANCELLED
    assert "must specify the START flag" in refusal(bench, 1, 1).message
    assert bench.infer(1, 1, start=True) == 1


def test_request_past_its_deadline_ends_its_sequence(bench: SequenceBench) -> None:
    bench.load(config(ONE_SLOT))
    bench.infer(1, 1, start=True)
    error = refusal(bench, 1, 1, deadline=time.monotonic() - 1)
    assert error.message == "Request timeout expired"
    assert "must specify the START flag" in refusal(bench, 1, 1).message
