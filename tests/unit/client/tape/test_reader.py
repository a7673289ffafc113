"""A tape is read in the order of arrival, over all ingresses, and by what chooses rows."""

from pathlib import Path

import pytest

from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import TapeError, TapeResponse
from nereid_client.tape.segments import cut, seal
from nereid_client.tape.where import parse_where
from tests.unit.client.tape.made import row, write


def test_rows_of_all_ingresses_are_in_the_order_of_arrival(tmp_path: Path) -> None:
    first = write(tmp_path / "n1" / "ab-1.open", [row(2, 2), row(1, 1), row(6, 6)])
    seal(first, cut(first))
    write(tmp_path / "n1" / "ab-2.open", [row(7, 7), row(5, 5)])
    write(tmp_path / "n2" / "cd-1.open", [row(4, 4), row(3, 3, model="other")])
    tape = Tape(tmp_path)
    assert [each.number for each in tape.rows()] == [1, 2, 3, 4, 5, 6, 7]
    assert [each.number for each in tape.rows(newest_first=True)] == [7, 6, 5, 4, 3, 2, 1]
    assert [each.number for each in tape.rows(models={"other"})] == [3]
    assert [each.number for each in tape.rows(parse_where("key=ab-5"))] == [5]
    assert [each.path.name for each in tape.segments()] == ["ab-1.tape", "cd-1.open", "ab-2.open"]


def test_a_tape_goes_on_while_its_server_seals_a_segment(tmp_path: Path) -> None:
    path = write(tmp_path / "ab-1.open", [row(1)])
    other = write(tmp_path / "ab-2.open", [row(2, 200)])
    rows = Tape(tmp_path).rows()
    assert next(rows).number == 1
    seal(path, cut(path))
    seal(other, cut(other))
    assert next(rows).number == 2


def test_a_tape_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match="there is no tape at"):
        Tape(tmp_path / "none")
    with pytest.raises(TapeError, match="has no tape: no file"):
        list(Tape(tmp_path).rows())


ROW = row(
    3, 1000, id="a b", version="2", token="alice", sequence_id=9, flags=("redacted",), parameters={"x": 1}
)
FAILED = row(4, responses=(TapeResponse(60_000_000, (), "INTERNAL", "no", True),))


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", True),
        ("id='a b'", True),
        ('id="a b" and model=simple', True),
        ("id=a", False),
        ("id!=a, version=2", True),
        ("model=other", False),
        ("token=alice", True),
        ("sequence=9", True),
        ("key=ab-3", True),
        ("latency_ms>4.9 and latency_ms <= 5", True),
        ("latency_ms>50", False),
        ("failed", False),
        ("not failed and redacted", True),
        ("! failed", True),
        ("since=1h", False),
        ("until=1h", True),
        ("since=1970-01-01T00:00+00:00", True),
        ("since=2026-11-26", False),
        ("replayable", True),
    ],
)
def test_conditions(text: str, chosen: bool) -> None:
    assert parse_where(text, now=10_000)(ROW) is chosen


def test_conditions_of_failures() -> None:
    assert parse_where("failed and code=INTERNAL and latency_ms>50")(FAILED)
    assert not parse_where("failed", "code=UNAVAILABLE")(FAILED)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name=x", "there is no 'name'"),
        ("latency_ms>fast", "'latency_ms' is compared with a number, not with 'fast'"),
        ("since=yesterday", "not 'yesterday'"),
        ("since>2h", "'since>' is not understood"),
        ("id", "'id' is not understood"),
        ("id>3", "'id>' is not understood"),
        ("failed=yes", "write `failed` or `not failed`"),
        ("failed or redacted", "'failed or redacted' is not understood"),
        ("failed and", "'' is not understood"),
        ("id='a", "'id='a' is not understood"),
    ],
)
def test_what_is_not_understood_is_shown(text: str, part: str) -> None:
    with pytest.raises(TapeError) as raised:
        parse_where(text)
    assert part in str(raised.value)


def test_rows_that_a_sealed_segment_has_lost_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "ab-1.open", [row(1), row(2), row(3)])
    whole, counted = path.read_bytes(), cut(path)
    path = seal(path, counted)
    sealed = bytearray(path.read_bytes())
    sealed[whole.rindex(b"REC1") + 20] ^= 1  # in the frame of the last row
    path.write_bytes(sealed)
    tape = Tape(tmp_path)
    assert [each.number for each in tape.rows()] == [1, 2]
    assert [each.number for each in tape.rows(newest_first=True)] == [2, 1], "counted once, not each time"
    assert tape.troubles == [f"{path}: 1 row is damaged or missing"]
    path.write_bytes(whole[:-1])  # with its end it has lost the number of its rows
    assert len([*tape.rows()]) == 2
    assert tape.damaged == {path: 1}
    assert [each.whole for each in tape.segments()] == [False]


def test_a_copy_of_a_segment_below_the_directory_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "n1" / "ab-1.open", [row(1), row(2)])
    write(tmp_path / "copy" / "ab-1.open", [row(1)])  # made when it had only one row
    tape = Tape(tmp_path)
    assert [each.number for each in tape.rows()] == [1, 2]
    seal(path, cut(path))
    assert [each.number for each in tape.rows()] == [1, 2]
    assert len(tape.segments()) == 2, "what removes rows finds both"
