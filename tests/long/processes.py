"""The processes of a server over time: memory, descriptors, threads, and whether they grow."""

import itertools
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import psutil

from benchmarks.processes import MIB, role_of, status_kib, tree

ARENA: Final = "/memfd:nereid-arena"
_POINTS: Final = 200
"""Of a series, that a slope is taken over: it takes a time that grows with their square."""

Point = tuple[float, float]


class Reading(NamedTuple):
    """Of one process at one moment; sizes in MiB."""

    role: str
    uss: float
    rss: float
    files: int
    threads: int


class Snapshot(NamedTuple):
    """Of a server; arenas are what is committed of each, in MiB, by inode."""

    readings: dict[int, Reading]
    arenas: dict[int, float]

    @property
    def arena_mib(self) -> float:
        return sum(self.arenas.values())


def snapshot(root: psutil.Process) -> Snapshot:
    """Read all processes under `root`."""
    readings: dict[int, Reading] = {}
    arenas: dict[int, float] = {}
    for process in tree(root):
        with suppress(psutil.Error, OSError):
            reading = _read(process, process.pid == root.pid)
            if reading.rss:  # none: it has ended
                readings[process.pid] = reading
            arenas.update(_arenas(process.pid))
    return Snapshot(readings, arenas)


def _read(process: psutil.Process, is_root: bool) -> Reading:
    pid = process.pid
    private = sum(status_kib(pid, "smaps_rollup", f"Private_{kind}") for kind in ("Clean", "Dirty"))
    rss = status_kib(pid, "smaps_rollup", "Rss")
    role = role_of(process, is_root)
    return Reading(role, private / 1024, rss / 1024, process.num_fds(), process.num_threads())


def _arenas(pid: int) -> Iterator[tuple[int, float]]:
    """Inode and committed memory of each arena that a process has the descriptor of: one end of each does."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        with suppress(OSError):
            if os.readlink(path).startswith(ARENA):
                status = os.stat(path)
                yield status.st_ino, status.st_blocks * 512 / MIB


def slope(points: Sequence[Point]) -> float:
    """How steeply a series rises: the median over pairs of points (Theil and Sen), blind to a few jumps."""
    step = -(-len(points) // _POINTS)
    pairs = itertools.combinations(points[::step], 2)
    return statistics.median((y - x) / (t - s) for (s, x), (t, y) in pairs)


class Growth(NamedTuple):
    """What a process has grown by over a time, in MiB and seconds, jumps aside."""

    role: str
    pid: int
    seconds: float
    first: float
    last: float
    rise: float

    @property
    def per_hour(self) -> float:
        """MiB an hour."""
        return self.rise / self.seconds * 3600


def growth(role: str, pid: int, points: Sequence[Point]) -> Growth:
    """Judge the memory of one process: at least two points of seconds and MiB."""
    seconds = points[-1][0] - points[0][0]
    return Growth(role, pid, seconds, points[0][1], points[-1][1], slope(points) * seconds)


class Watch:
    """Reads the processes of a server every few seconds, in a thread of its own."""

    def __init__(self, root: psutil.Process, every_s: float = 2.0) -> None:
        self._root = root
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.memory: defaultdict[int, list[Point]] = defaultdict(list)
        self.roles: dict[int, str] = {}
        self.arena_mib: list[float] = []
        self.seen: set[psutil.Process] = set()

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.seen.update(tree(self._root))
            taken = snapshot(self._root)
            now = time.monotonic()
            self.arena_mib.append(taken.arena_mib)
            for pid, reading in taken.readings.items():
                self.memory[pid].append((now, reading.uss))
                self.roles[pid] = reading.role

    def growths(self, since: float, least_s: float) -> list[Growth]:
        """Of every process that was watched for so long since a moment, those that grew most first."""
        found = []
        for pid, points in self.memory.items():
            late = [point for point in points if point[0] >= since]
            if late and late[-1][0] - late[0][0] >= least_s:
                found.append(growth(self.roles[pid], pid, late))
        return sorted(found, key=lambda each: -each.rise)
