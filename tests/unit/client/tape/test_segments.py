"""Segments keep rows as they were given, and whatever is in a file costs no more than its size."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nereid_client.tape.reader import Tape
from nereid_client.tape.records import CHECKED, FRAME_BYTES, MAGIC, RecordFile, encode
from nereid_client.tape.rows import TapeError, TapeResponse, TapeTensor
from nereid_client.tape.segments import count, cut, encode_row, read_segment, seal
from tests.unit.client.tape.made import plain, row, tensor, write

EVERYTHING = row(
    7,
    asked_version="1",
    version="2",
    id="é",
    sequence_id="s",
    sequence_start=True,
    sequence_end=True,
    priority=3,
    timeout_us=4,
    token="alice",
    requested=("OUT",),
    parameters={"a": 1, "b": "x", "c": 0.5, "d": True},
    inputs=(tensor("IN", bytes(range(200)) * 4), tensor("T", b"", datatype="BYTES", nbytes=9, state="size")),
    responses=(
        TapeResponse(1, (tensor("OUT", b"abcd"),)),
        TapeResponse(2, (), "INTERNAL", "no", final=True),
    ),
    reason="error",
    probability=0.25,
    flags=("redacted",),
)


def read(path: Path) -> list[object]:
    return [plain(each) for each in Tape(path).rows()]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = write(tmp_path / "ab-1.open", [EVERYTHING, row(8)])
    assert read(path) == [EVERYTHING, row(8)]


def test_tensors_bytes_are_not_copied() -> None:
    data = memoryview(bytes(1 << 20))
    assert encode_row(row(inputs=(tensor("IN", data),)))[1] is data


def test_a_sealed_segment_tells_what_it_has_without_a_look_at_its_rows(tmp_path: Path) -> None:
    rows = [row(1, 5), row(2, 3, model="other"), row(3, 9)]
    path = write(tmp_path / "ab-1.open", rows)
    opened = read_segment(path)
    sealed = seal(path, cut(path))
    assert (sealed.name, path.exists()) == ("ab-1.tape", False)
    found = read_segment(sealed)
    assert (opened.sealed, found.sealed, found.counted) == (False, True, opened.counted)
    assert (found.counted.rows, found.counted.models) == (3, {"simple": 2, "other": 1})
    assert (found.counted.first_ns, found.counted.last_ns) == (rows[1].arrived_ns, rows[2].arrived_ns)
    assert read(sealed) == [rows[1], rows[0], rows[2]]
    with RecordFile(sealed) as file:
        assert count(file) == found.counted


def test_a_file_cut_anywhere_keeps_its_whole_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "ab-1.open", [row(1), row(2)])
    whole = path.read_bytes()
    first = len(MAGIC) + sum(map(len, encode_row(row(1))))
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        expected = (size >= first) + (size == len(whole))
        assert len(read(path)) == expected
        assert cut(path).rows == expected
        assert path.stat().st_size == (0 if size < len(MAGIC) else (len(MAGIC), first, len(whole))[expected])


def test_a_segment_without_rows_is_sealed_too(tmp_path: Path) -> None:
    path = tmp_path / "ab-1.open"
    path.touch()
    found = read_segment(seal(path, cut(path)))
    assert (found.sealed, found.counted.rows, read(found.path)) == (True, 0, [])


def test_a_damaged_row_is_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "ab-1.open", [row(1), row(2)])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the body of the second
    path.write_bytes(data)
    tape = Tape(path)
    assert [each.number for each in tape.rows()] == [1]
    assert tape.damaged == {path: 1}


def test_only_bodies_up_to_a_size_have_a_sum(tmp_path: Path) -> None:
    for size, has in ((CHECKED, True), (CHECKED + 1, False)):
        path = tmp_path / str(size)
        path.write_bytes(MAGIC + b"".join(encode(1, 0, b"", [bytes(size)])))
        with RecordFile(path) as file:
            (place,) = file.places()
            assert (place.body, place.body_sum is not None) == (size, has)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"PAR1" * 10, "is no file of a tape"),
        (MAGIC[:-1] + b"\x09", "is a tape of version 9, which this program cannot read"),
    ],
)
def test_other_files_are_told_from_tapes(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "x.tape"
    path.write_bytes(data)
    with pytest.raises(TapeError, match=text):
        Tape(path)
    with pytest.raises(TapeError, match=f"has no tape that can be read: .*{text}"):
        list(Tape(tmp_path).rows())


def test_a_pipe_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.tape")
    with pytest.raises(TapeError, match="no file"):
        Tape(tmp_path).segments()


def test_arrays_of_recorded_tensors() -> None:
    assert tensor("IN").array().tolist() == [1.0]
    assert TapeTensor("IN", "BF16", (1,), b"\x80?", 2).array().tolist() == [1.0]
    texts = TapeTensor("IN", "BYTES", (2, 1), b"\1\0\0\0a\0\0\0\0", 9).array()
    assert texts.tolist() == [[b"a"], [b""]]
    data = bytearray(12)
    assert np.shares_memory(np.frombuffer(data, np.uint8), tensor("IN", data).array())
    for bad in (
        tensor("IN", shape=(2,)),
        tensor("IN", shape=(-1,)),
        tensor("IN", datatype="FP8"),
        tensor("IN", state="size"),
        TapeTensor("IN", "BYTES", (1,), b"\xff\xff\xff\xffa", 5),
        TapeTensor("IN", "BYTES", (3,), b"\0\0\0\0", 4),
    ):
        with pytest.raises(TapeError):
            bad.array()


def test_what_makes_a_row_unrepeatable() -> None:
    assert row().replayable
    assert EVERYTHING.why_not == "input 'T' was not kept (size)"
    assert (EVERYTHING.failed, EVERYTHING.latency_ns, EVERYTHING.key) == (True, 2, "ab-7")


WHOLE = b"".join([MAGIC, *map(bytes, encode_row(EVERYTHING)), *map(bytes, encode_row(row(8)))])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_files_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    made = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(made)))
        made[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    path = tmp_path / "ab-1.open"
    path.write_bytes(made)
    try:
        for each in Tape(path).rows():
            for one in each.inputs:
                try:
                    one.array()
                except TapeError:
                    pass
    except TapeError:
        pass
    for change in (read_segment, cut):
        try:
            change(path)
        except TapeError:
            assert bytes(made[: len(MAGIC)]) != MAGIC


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(head=st.binary(max_size=200), body=st.binary(max_size=20), kind=st.integers(0, 255))
def test_hostile_records_with_the_right_sums(tmp_path: Path, head: bytes, body: bytes, kind: int) -> None:
    path = tmp_path / "ab-1.open"
    path.write_bytes(MAGIC + b"".join(encode(kind, 0, head, [body])) + b"".join(encode_row(row())))
    assert [each.number for each in Tape(path).rows()] == [1]


def test_sizes_that_a_file_claims_are_not_allocated(tmp_path: Path) -> None:
    path = tmp_path / "ab-1.open"
    tracemalloc.start()
    try:
        for at in range(len(MAGIC), len(MAGIC) + FRAME_BYTES):
            path.write_bytes(WHOLE[:at] + b"\x7f" * 8 + WHOLE[at + 8 :])
            list(Tape(path).rows())
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
