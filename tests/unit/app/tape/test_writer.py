"""Whatever the disk does, rows are counted, memory is bounded, and the writer goes on."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from app.core.tensors import InferRequest, InferResponse, Tensor
from app.tape import files, writer
from app.tape.counts import TapeCounts
from app.tape.files import SegmentFile
from app.tape.queue import TapeQueue
from app.tape.rows import Waiting
from app.tape.taken import Taken
from app.tape.writer import Limits, TapeWriter
from nereid_client.tape.reader import Tape
from tests.unit.app.tape.test_queue import RULES
from tests.waiting import block_until


class Disk(SegmentFile):
    """A segment on a disk that a test has in its hand."""

    free = threading.Event()
    sync_free = threading.Event()
    error: OSError | None = None

    def _write(self, buffers: list[object]) -> None:
        self.free.wait(20)
        if self.error is not None:
            raise self.error
        super()._write(buffers)

    def sync(self) -> None:
        self.sync_free.wait(20)
        super().sync()


class Bench:
    def __init__(self, directory: Path, waiting_bytes: int = 1 << 20, limits: Limits | None = None) -> None:
        self.directory, self.counts = directory, TapeCounts()
        self.queue = TapeQueue(0, self.counts, waiting_bytes=waiting_bytes)
        self.writer = TapeWriter(
            self.queue, self.counts, str(directory), "ab", limits or Limits(), open_segment=Disk
        )
        self.writer.start()
        self.put_in = 0

    def put(self, number: int, size: int = 8) -> None:
        for _ in range(number):
            self.put_in += 1
            request = InferRequest(
                "m", "", (Tensor("IN", "UINT8", (size,), bytes(size)),), id=str(self.put_in)
            )
            taken = Taken(RULES, request, 1, "")
            taken.wall_ns = self.put_in
            taken.add(1, InferResponse("m", "1"), request)
            self.queue.put(taken)

    def put_until(self, condition: Callable[[], bool]) -> None:
        def reached() -> bool:
            self.put(1)
            return condition()

        block_until(reached)

    def settled(self) -> bool:
        return self.counts.rows + sum(self.counts.dropped.values()) == self.put_in

    def ids(self) -> list[str]:
        return [each.id for each in Tape(self.directory).rows()]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("FLUSH_S", "SYNC_S", "RETRY_S"):
        monkeypatch.setattr(writer, name, 0.002)
    for event in (Disk.free, Disk.sync_free):
        event.set()
    Disk.error = None
    yield
    for event in (Disk.free, Disk.sync_free):
        event.set()


@contextmanager
def writing(directory: Path, waiting_bytes: int = 1 << 20, limits: Limits | None = None) -> Iterator[Bench]:
    bench = Bench(directory, waiting_bytes, limits)
    try:
        yield bench
    finally:
        for event in (Disk.free, Disk.sync_free):
            event.set()
        bench.writer.close()


def test_rows_are_written_in_order_and_counted(tmp_path: Path) -> None:
    with writing(tmp_path) as bench:
        bench.put(200)
        block_until(bench.settled)
        assert bench.ids() == [str(number) for number in range(1, 201)]
        assert (bench.counts.rows, sum(bench.counts.dropped.values())) == (200, 0)
        assert bench.queue.waiting_bytes == 0
    (segment,) = Tape(tmp_path).segments()
    assert (segment.sealed, segment.counted.rows, segment.counted.nbytes) == (True, 200, bench.counts.nbytes)


@pytest.mark.parametrize("blocked", [Disk.free, Disk.sync_free])
def test_a_disk_that_blocks_costs_rows_and_no_memory(tmp_path: Path, blocked: threading.Event) -> None:
    with writing(tmp_path, waiting_bytes=100_000) as bench:
        bench.put(1)
        block_until(bench.settled)
        blocked.clear()
        bench.put(1)  # the writer waits for the disk from here on
        block_until(lambda: bench.queue.waiting_bytes == 0 or blocked is Disk.free)
        bench.put(1000, size=1000)
        assert bench.queue.waiting_bytes <= 100_000
        lost = bench.counts.dropped["queue"]
        assert 800 < lost < 1000
        blocked.set()
        block_until(bench.settled)
        assert (bench.counts.rows, bench.counts.dropped["queue"]) == (bench.put_in - lost, lost)
        assert len(bench.ids()) == bench.counts.rows


@pytest.mark.parametrize(("hurry_bytes", "rested"), [(1 << 20, True), (1, False)])
def test_batches_are_small_and_the_event_loop_runs_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurry_bytes: int, rested: bool
) -> None:
    rests, written = list[float](), list[int]()
    monkeypatch.setattr(writer, "rest", rests.append)
    monkeypatch.setattr(writer, "_HURRY_BYTES", hurry_bytes)
    with writing(tmp_path) as bench:
        append = bench.writer._append

        def counting(batch: list[Waiting]) -> None:
            written.append(len(batch))
            append(batch)

        monkeypatch.setattr(bench.writer, "_append", counting)
        Disk.free.clear()
        bench.put(500)
        Disk.free.set()
        block_until(bench.settled)
    assert sum(written) == bench.counts.rows == 500
    assert max(written) <= 128
    assert bool(rests) == rested


def test_files_are_looked_after_while_rows_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    with writing(tmp_path) as bench:

        def come_meanwhile(_: float) -> None:
            if not synced and bench.put_in < 20_000:
                bench.put(200)

        monkeypatch.setattr(writer, "rest", come_meanwhile)
        monkeypatch.setattr(Disk, "sync", lambda _: synced.append(bench.put_in))
        bench.put(500)
        block_until(lambda: bool(synced))
        block_until(bench.settled)
    assert synced[0] < 20_000


def test_a_full_disk_costs_rows_until_there_is_room(tmp_path: Path) -> None:
    with writing(tmp_path) as bench:
        bench.put(3)
        block_until(bench.settled)
        Disk.error = OSError(28, "No space left on device")
        bench.put(100)
        block_until(bench.settled)
        assert (bench.counts.rows, bench.counts.dropped["disk"]) == (3, 100)
        Disk.error = None
        bench.put_until(lambda: bench.counts.rows > 3)
        block_until(bench.settled)
        assert len(bench.ids()) == bench.counts.rows


def put_a_file_for(directory: Path) -> None:
    """Put a file where a directory is, however often the writer makes that again in between."""

    def is_put() -> bool:
        with suppress(FileNotFoundError):
            os.rename(directory, tempfile.mkdtemp(dir=directory.parent))
        with suppress(IsADirectoryError):
            directory.write_text("no directory")
        return directory.is_file()

    block_until(is_put)


def test_a_directory_that_goes_away_costs_rows_until_it_is_back(tmp_path: Path) -> None:
    place = tmp_path / "tape"
    with writing(place, limits=Limits(segment_bytes=1)) as bench:  # a file for each row
        bench.put(1)
        block_until(bench.settled)
        put_a_file_for(place)
        bench.put(10)
        block_until(bench.settled)
        assert bench.counts.dropped["disk"] == 10
        place.unlink()
        bench.put_until(lambda: bench.counts.rows > 1)
        block_until(bench.settled)


def test_a_segment_that_is_removed_is_not_written_on(tmp_path: Path) -> None:
    with writing(tmp_path) as bench:
        bench.put(1)
        block_until(bench.settled)
        (segment,) = Tape(tmp_path).segments()
        segment.path.unlink()
        bench.put_until(lambda: bool(list(tmp_path.rglob("*.open"))))
        block_until(bench.settled)


def test_a_disk_without_room_gets_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(tmp_path) as bench:
        monkeypatch.setattr(files, "is_scarce", lambda node: True)
        bench.put_until(lambda: bench.counts.dropped["space"] > 0)
        monkeypatch.undo()
        before = bench.counts.rows
        bench.put_until(lambda: bench.counts.rows > before)
        block_until(bench.settled)


def test_a_row_that_cannot_be_made_is_counted(tmp_path: Path) -> None:
    with writing(tmp_path) as bench:
        request = InferRequest("m", "", (Tensor("IN", "UINT8", (1,), object()),))
        taken = Taken.__new__(Taken)
        bench.put(1)
        taken.rules, taken.request, taken.responses, taken.wall_ns = RULES, request, [], 1
        taken.nbytes, taken.in_sequence, taken.flags = 1 << 15, False, set()
        bench.queue.put(taken)
        bench.put(1)
        bench.put_in += 1
        block_until(bench.settled)
        assert (bench.counts.rows, bench.counts.dropped["fault"]) == (2, 1)


def test_segments_are_sealed_by_size_and_the_oldest_removed(tmp_path: Path) -> None:
    with writing(tmp_path, limits=Limits(max_bytes=50_000, segment_bytes=10_000)) as bench:
        for _ in range(20):
            bench.put(10, size=1000)
            block_until(bench.settled)
    assert bench.counts.rows == 200
    sizes = [each.path.stat().st_size for each in Tape(tmp_path).segments()]
    assert sum(sizes) <= 50_000 and len(sizes) >= 3
    assert bench.ids()[-1] == "200"


def test_a_blocked_disk_does_not_keep_a_server_from_ending(tmp_path: Path) -> None:
    with writing(tmp_path) as bench:
        bench.put(1)
        block_until(bench.settled)
        Disk.free.clear()
        bench.put(1)
        bench.writer.close(timeout_s=0.05)
