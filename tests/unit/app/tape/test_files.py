"""The files of a tape on a node: private, sealed after a crash, and of a bounded size."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

from app.tape.files import SegmentFile, is_scarce, node_directory, read_key, recover, retain
from nereid_client.tape.reader import Tape
from nereid_client.tape.segments import encode_row
from tests.unit.client.tape.made import row


def written(path: Path, *numbers: int) -> SegmentFile:
    segment = SegmentFile(path)
    for number in numbers:
        made = row(number)
        segment.write(encode_row(made))
        segment.counted.count(made.arrived_ns, made.model, 1)
    return segment


def test_directories_and_files_are_of_this_user_alone(tmp_path: Path) -> None:
    node = node_directory(str(tmp_path / "a" / "tape"))
    segment = written(node / "ab-1.open", 1)
    read_key(str(tmp_path / "a" / "tape"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")}
    assert modes == {"tape": 0o700, node.name: 0o700, "ab-1.open": 0o600, "key": 0o600}
    segment.seal()


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    node = node_directory(str(tmp_path))
    node.chmod(0o755)
    with pytest.raises(PermissionError, match="mode 0700"):
        node_directory(str(tmp_path))


def test_the_key_is_made_once_and_read_by_all(tmp_path: Path) -> None:
    key = read_key(str(tmp_path))
    assert (len(key), read_key(str(tmp_path)), os.listdir(tmp_path)) == (32, key, ["key"])
    for size in (0, 31, 100):  # as a loss of power, or a person, may leave it
        (tmp_path / "key").write_bytes(bytes(size))
        with pytest.raises(OSError, match=f"has {size} bytes, not 32: remove it"):
            read_key(str(tmp_path))
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(PermissionError, match="mode 0600"):
        read_key(str(tmp_path))


def test_a_segment_is_renamed_when_it_is_sealed(tmp_path: Path) -> None:
    segment = written(tmp_path / "ab-1.open", 1, 2)
    assert [each.sealed for each in Tape(tmp_path).segments()] == [False]
    segment.seal()
    (found,) = Tape(tmp_path).segments()
    assert (found.sealed, found.counted.rows) == (True, 2)


def test_a_segment_without_rows_leaves_no_file(tmp_path: Path) -> None:
    SegmentFile(tmp_path / "ab-1.open").seal()
    assert list(tmp_path.iterdir()) == []


def test_what_a_failed_write_has_left_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = written(tmp_path / "ab-1.open", 1)
    size, writev = segment.size, os.writev
    calls = iter((True, False))

    def full(descriptor: int, buffers: list[memoryview]) -> int:
        if next(calls):
            return writev(descriptor, [buffers[0][:10]])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space"):
        segment.write(encode_row(row(2)))
    monkeypatch.undo()
    assert (tmp_path / "ab-1.open").stat().st_size == size
    segment.write(encode_row(row(3)))
    assert [each.number for each in Tape(tmp_path).rows()] == [1, 3]
    segment.close()


def test_many_buffers_are_written_by_several_calls(tmp_path: Path) -> None:
    segment = SegmentFile(tmp_path / "ab-1.open")
    rows = [row(number) for number in range(1, 1001)]
    segment.write([part for each in rows for part in encode_row(each)])
    assert [each.number for each in Tape(tmp_path).rows()] == [*range(1, 1001)]
    segment.close()


def test_segments_of_processes_that_ended_are_sealed_and_no_others(tmp_path: Path) -> None:
    living = written(tmp_path / "cd-1.open", 5)
    for name, tail in (("ab-1", b""), ("ab-2", b"half a row")):
        left = written(tmp_path / f"{name}.open", 1)
        os.write(left._descriptor, tail)
        left.close()
    written(tmp_path / "ab-3.open").close()  # no rows
    (tmp_path / "ab-4.open").write_bytes(b"NRD")
    (tmp_path / "ab-5.open").write_bytes(b"of another program")
    assert recover(tmp_path) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ab-1.tape",
        "ab-2.tape",
        "ab-5.open",
        "cd-1.open",
    ]
    assert sorted(each.number for each in Tape(tmp_path).rows()) == [1, 1, 5]
    living.seal()


def test_a_segment_is_locked_while_it_is_written(tmp_path: Path) -> None:
    segment = written(tmp_path / "ab-1.open", 1)
    with open(segment.path, "rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    segment.seal()


def test_the_oldest_segments_go_first(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / f"ab-{number}.tape"
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    (tmp_path / "ab-9.open").write_bytes(bytes(100))
    (tmp_path / "ab-1.labels").write_bytes(bytes(1000))
    assert retain(tmp_path, 500, 0) == []
    assert [path.name for path in retain(tmp_path, 350, 0)] == ["ab-0.tape", "ab-1.tape"]
    assert [path.name for path in retain(tmp_path, 350, oldest=3)] == ["ab-2.tape"]
    assert {path.name for path in tmp_path.iterdir()} == {"ab-3.tape", "ab-9.open", "ab-1.labels"}


def test_a_disk_with_room_is_not_scarce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk:
        f_bavail, f_blocks, f_frsize = 9, 100, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    assert is_scarce(tmp_path)
    monkeypatch.setattr(Disk, "f_bavail", 10)
    assert not is_scarce(tmp_path)
    monkeypatch.setattr(Disk, "f_bavail", 9 << 20)  # 36 GiB of 400
    monkeypatch.setattr(Disk, "f_blocks", 100 << 20)
    assert not is_scarce(tmp_path)
