"""Which rows of a tape are repeated, and when."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import Row, TapeResponse
from nereid_client.tape.where import parse_where
from nereid_client.tools.perf.options import Address
from nereid_client.tools.replay.options import Options, ReplayError
from nereid_client.tools.replay.plan import CUT, Plan, few, plan_of, read_plan
from tests.unit.client.tape.made import row, tensor, write

HERE = Address("http", "localhost", 1)


def steps(name: int | str, numbers: Sequence[int], start: bool = True, **changed: Any) -> list[Row]:
    """The steps of a sequence, a second apart; with their beginning or without."""
    last = numbers[-1]
    return [
        row(
            number,
            100.0 + number,
            sequence_id=name,
            sequence_start=start and number == numbers[0],
            sequence_end=number == last,
            **changed,
        )
        for number in numbers
    ]


def test_rows_begin_as_they_arrived_or_so_many_times_as_fast() -> None:
    plan = plan_of([row(1, 100.0), row(2, 100.5), row(3, 104.0)])
    assert plan.moments(1).tolist() == [0, 500_000_000, 4_000_000_000]
    assert plan.moments(4).tolist() == [0, 125_000_000, 1_000_000_000]
    assert plan.seconds == 4.0 and not plan.skipped


def test_sequences_without_their_beginning_are_left_out_and_counted() -> None:
    rows = sorted(
        [*steps(7, [1, 3, 5]), *steps(8, [2, 4], start=False), *steps("a", [6, 8]), row(9, 109.0)],
        key=lambda each: each.arrived_ns,
    )
    plan = plan_of(rows)
    assert [(each.key, each.sequence) for each in plan.rows] == [
        ("ab-1", 0), ("ab-3", 0), ("ab-5", 0), ("ab-6", 1), ("ab-8", 1), ("ab-9", -1),
    ]  # fmt: skip
    assert plan.skipped == {CUT: 2}


def test_an_id_that_is_used_again_is_another_sequence() -> None:
    plan = plan_of([*steps(7, [1, 2]), *steps(7, [3, 4]), *steps(7, [5], model="other")])
    assert [each.sequence for each in plan.rows] == [0, 0, 1, 1, 2]


def test_rows_that_cannot_be_repeated_are_counted_by_the_reason() -> None:
    hidden = row(2, inputs=(tensor("IN", b"", state="size", nbytes=4),))
    broken = steps(7, [3, 4, 5])
    broken[1] = steps(7, [3, 4, 5], inputs=(tensor("IN", b"", state="hash"),))[1]
    plan = plan_of([row(1), hidden, row(6, flags=("no-replay",)), *broken])
    assert [each.key for each in plan.rows] == ["ab-1", "ab-3"]
    assert plan.skipped == {
        "input 'IN' was not kept (size)": 1,
        "the model's tape.yaml says `replay: never`": 1,
        "input 'IN' was not kept (hash)": 1,
        "a step behind one of its sequence that cannot be repeated": 1,
    }


def test_latencies_of_what_failed_or_was_cancelled_are_not_known() -> None:
    failed = row(2, responses=(TapeResponse(9, code="INTERNAL", error="why", final=True),))
    rows = [row(1), failed, row(3, flags=("cancelled",)), row(4, responses=())]
    assert [each.latency_ns for each in plan_of(rows).rows] == [5_000_000, 0, 0, 0]
    assert [each.failed for each in plan_of(rows).rows] == [False, True, False, False]


def test_the_newest_rows_that_were_chosen(tmp_path: Path) -> None:
    write(tmp_path / "a.open", [row(number, 100.0 + number) for number in range(20)])
    chosen = parse_where("not failed")
    plan = read_plan(Tape(tmp_path), Options(HERE, rows=5, where=chosen))
    assert [each.key for each in plan.rows] == [f"ab-{number}" for number in range(15, 20)]
    assert plan.skipped == {"older than the newest 5 (--rows)": 15}
    with pytest.raises(ReplayError, match="can be repeated: none was chosen"):
        read_plan(Tape(tmp_path), Options(HERE, where=parse_where("model=other")))


def test_damaged_rows_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tape", [row(number) for number in range(3)])
    data = bytearray(path.read_bytes())
    data[-3] ^= 255  # in the body of the last one
    path.write_bytes(data)
    plan = read_plan(Tape(path), Options(HERE))
    assert len(plan.rows) == 3, "heads are whole; what is wrong with a body is seen when it is read"
    path.write_bytes(data[:-40])
    plan = read_plan(Tape(path), Options(HERE))
    assert len(plan.rows) == 2
    assert plan.skipped == {"damaged on the disk, or missing there": 1}
    (tmp_path / "b.tape").write_bytes(b"NRDTAPE\x02")
    skipped = read_plan(Tape(tmp_path), Options(HERE)).skipped
    assert [why for why in skipped if why.startswith("a whole file: ") and "of version 2" in why]


@pytest.mark.parametrize("number", [1, 3, 10, 40])
def test_few_rows_are_of_all_models_and_sequences_whole(number: int) -> None:
    rows = [
        *(row(each, float(each)) for each in range(30)),
        *steps(7, range(40, 44)),
        *steps(8, range(50, 54)),
    ]
    for place in range(1, 30, 5):  # in turn
        rows[place] = replace(rows[place], model="fifth")
    found = few(plan_of(rows), number)
    assert found.rows == few(plan_of(rows), number).rows
    assert 1 <= len(found.rows) <= max(number, 1)
    assert found.rows == sorted(found.rows, key=lambda each: each.arrived_ns)
    for sequence in (0, 1):
        assert sum(each.sequence == sequence for each in found.rows) in (0, 4)
    if number >= 10:
        assert {each.model for each in found.rows} == {"simple", "fifth"}
    if number == 40:
        assert len(found.rows) == 38


def test_a_model_is_left_out() -> None:
    plan = plan_of([row(1), row(2, model="other"), row(3)])
    plan.leave("simple", "why")
    assert [each.model for each in plan.rows] == plan.models == ["other"] and plan.skipped == {"why": 2}
    assert Plan([]).seconds == 0.0
