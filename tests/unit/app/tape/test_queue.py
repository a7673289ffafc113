"""Rows that wait for the disk are bounded, and what finds no place is counted to the row."""

import random
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.core.tape.redaction import Redaction
from app.core.tape.spec import TapeSpec
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.tape.counts import FAULT, TapeCounts
from app.tape.queue import MAX_CUT, TapeQueue, TokenBucket
from app.tape.recording import Recorder, Recording, Tapped
from app.tape.taken import MAX_ROW_BYTES, OVERHEAD_BYTES, Rules, Taken
from nereid_client.tape.reader import Tape
from nereid_client.tape.records import MAGIC

RULES = Rules("m", TapeSpec(rate=1.0), Redaction(TapeSpec(), b""))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


LARGE = 20_000
"""Bytes of a row that the writer writes down, as in `taken(LARGE)`."""
ONE = LARGE + OVERHEAD_BYTES


def taken(size: int = LARGE, sequence: int = 0, start: bool = False, end: bool = False) -> Taken:
    tensor = Tensor("IN", "UINT8", (size,), bytes(size))
    request = InferRequest("m", "", (tensor,), sequence_id=sequence, sequence_start=start, sequence_end=end)
    made = Taken(RULES, request, 1, "")
    made.in_sequence = bool(sequence)
    return made


def test_rows_wait_in_order_up_to_a_size() -> None:
    counts = TapeCounts()
    queue = TapeQueue(0, counts, waiting_bytes=3 * ONE)
    rows = [taken() for _ in range(5)]
    assert [queue.put(row) for row in rows] == [True, True, True, False, False]
    assert counts.dropped["queue"] == 2
    assert [each.row for each in queue.take(2) + queue.take(2)] == rows[:3] and queue.take(1) == []
    assert not queue.put(rows[3])  # they are still in memory, until they are written
    queue.taken_out(ONE)
    assert queue.put(rows[3])
    assert queue.waiting_bytes == 3 * ONE


def test_small_rows_wait_as_what_is_written(tmp_path: Path) -> None:
    queue = TapeQueue(0, TapeCounts(), "ab")
    queue.put(taken(8))
    (waiting,) = queue.take(9)
    assert isinstance(waiting.row, bytes) and queue.waiting_bytes == waiting.nbytes == len(waiting.row)
    (tmp_path / "ab-1.tape").write_bytes(MAGIC + waiting.row)
    (read,) = Tape(tmp_path).rows()
    assert (read.key, read.inputs[0].nbytes) == ("ab-1", 8)


def test_lag_is_the_age_of_the_oldest() -> None:
    clock = Clock()
    queue = TapeQueue(0, TapeCounts(), clock=clock)
    assert queue.lag_s == 0
    queue.put(taken())
    clock.now += 2
    queue.put(taken())
    assert queue.lag_s == 2
    queue.take(1)
    assert queue.lag_s == 0


def test_so_many_bytes_a_second_pass() -> None:
    clock = Clock()
    bucket = TokenBucket(1000.0, clock)
    assert bucket.take(2 * MAX_ROW_BYTES)  # whatever the rate is, the largest rows pass
    assert not bucket.take(1)
    passed = 0
    for _ in range(100_000):
        clock.now += 0.001
        passed += bucket.take(10) * 10
    assert 99_000 <= passed <= 100_000
    assert TokenBucket(0, clock).take(1 << 60)


def test_a_sequence_that_lost_a_row_is_not_gone_on_with() -> None:
    counts = TapeCounts()
    queue = TapeQueue(0, counts, waiting_bytes=ONE)
    assert queue.put(taken(sequence=7, start=True))
    assert not queue.put(taken(sequence=7))
    queue.take(1)
    queue.taken_out(ONE)
    assert not queue.put(taken(sequence=7))
    assert queue.put(taken(sequence=8))
    queue.take(1)
    queue.taken_out(ONE)
    assert not queue.put(taken(sequence=7, end=True))
    assert counts.dropped | {"queue": 0, "sequence": 0} == dict.fromkeys(counts.dropped, 0)
    assert (counts.dropped["queue"], counts.dropped["sequence"]) == (1, 2)
    assert queue.put(taken(sequence=7, start=True))


def test_sequences_that_are_cut_are_forgotten_some_day() -> None:
    queue = TapeQueue(0, TapeCounts(), waiting_bytes=0)
    for number in range(1, 2 * MAX_CUT):
        queue.put(taken(sequence=number))
    assert len(queue._cut) == MAX_CUT


def test_rows_and_drops_add_up_whatever_happens() -> None:
    chance, counts = random.Random(3), TapeCounts()
    queue = TapeQueue(1 << 20, counts, waiting_bytes=1 << 20)
    out = kept = 0
    for _ in range(3000):
        kept += queue.put(taken(chance.choice((0, 1000, 100_000)), chance.randint(0, 3)))
        for row in queue.take(1) if chance.random() < 0.4 else []:
            queue.taken_out(row.nbytes)
            out += 1
    for row in queue.take(3000):
        queue.taken_out(row.nbytes)
        out += 1
    assert kept == out
    assert kept + sum(counts.dropped.values()) == 3000
    assert queue.waiting_bytes == 0


def test_bytes_of_a_request_that_cannot_be_recorded_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = TapeCounts()
    queue = TapeQueue(0, counts)
    tapped = Tapped(Recorder(queue, counts), RULES, True, Mock())
    recording = Recording(tapped, taken().request, lambda response: None, "rate")
    output = Tensor("OUT", "UINT8", (LARGE,), bytes(LARGE))
    recording.receive(InferResponse(outputs=(output,), final=False))
    assert queue.collected == LARGE
    monkeypatch.setattr(Taken, "add", Mock(side_effect=RuntimeError("fault")))
    for final in (False, True):
        recording.receive(InferResponse(outputs=(output,), final=final))
        assert queue.collected == 0
    assert counts.refused[FAULT] == 1
