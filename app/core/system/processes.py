"""Processes of this machine, as Linux shows them under /proc, and the end of a tree of them."""

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_PR_SET_CHILD_SUBREAPER: Final = 36
_KILL_S: Final = 5.0
_POLL_S: Final = 0.05
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_USER: Final = 12
"""The place among `stat_fields` of the user time; that in the kernel and both of ended children follow."""
_STAT_BYTES: Final = 4096
"""More than /proc/PID/stat ever has: some fifty numbers and a name of 15 letters."""


class Process(NamedTuple):
    """A process, by its id and the time of its start, which no later process has with the same id."""

    pid: int
    started: int

    @property
    def fault(self) -> str:
        """Why it does nothing at present, or never again; "" while it runs."""
        found = _status(self.pid)
        if found is None or found.started != self.started or found.state in "ZX":
            return "has ended"
        return "is stopped" if found.state == "T" else ""

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        if self.fault != "has ended":
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class _Status(NamedTuple):
    """What /proc/PID/stat says: name, state (one letter), parent and time of start."""

    name: str
    state: str
    parent: int
    started: int


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the name on, the second of proc(5); [] without the process."""
    try:
        # Not `open`, which takes three times as long: some processes are looked at four times a second.
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(file, _STAT_BYTES)
        finally:
            os.close(file)
    except OSError:
        return []
    # A process may give itself any bytes as a name.
    head, _, tail = content.decode(errors="replace").rpartition(")")
    return [head.partition("(")[2], *tail.split()]


def _status(pid: int) -> _Status | None:
    fields = stat_fields(pid)
    return _Status(fields[0], fields[1], int(fields[2]), int(fields[20])) if fields else None


def process(pid: int) -> Process | None:
    """Return the process with this id; None when there is none."""
    found = _status(pid)
    return None if found is None else Process(pid, found.started)


def arguments(pid: int) -> list[str]:
    """Return the command line of a process; [] when it has ended or belongs to the kernel."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0").decode(errors="replace").split("\0")
    except OSError:
        return []


def find(name: str, argument: str) -> Process | None:
    """Return the process of this name, of at most 15 letters, with this argument; None when there is none."""
    for pid, status in _all().items():
        if status.name == name and argument in arguments(pid):
            return Process(pid, status.started)
    return None


def descendants(root: int) -> list[Process]:
    """Return all processes below one."""
    processes = _all()
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, status in processes.items():
        children[status.parent].append(pid)
    found, waiting = [], [root]
    while waiting:
        below = children[waiting.pop()]
        waiting += below
        found += [Process(pid, processes[pid].started) for pid in below]
    return found


_with: list[int] = []


def count_with(pid: int) -> None:
    """Count another process as one of this one's, which is not below it."""
    _with.append(pid)


def own_tree() -> set[int]:
    """Return the ids of this process, of all below it, and of those that are counted with it."""
    return {os.getpid(), *_with, *(below.pid for below in descendants(os.getpid()))}


def own_processes() -> set[int]:
    """Return the same as `own_tree`, without a look at every process: of those below, what the kernel lists.

    Without such lists (a kernel built without CONFIG_PROC_CHILDREN) those below are left out.
    """
    found, waiting = set[int](), [os.getpid(), *_with]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += _children(pid)
    return found


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time that processes have used, and those below them that have ended."""
    ticks = (int(field) for pid in pids for field in stat_fields(pid)[_USER : _USER + 4])
    return sum(ticks) / _TICKS_A_SECOND


def resident_memory(pids: Iterable[int]) -> int:
    """Return the bytes of processes that are in memory; pages that they share count for each."""
    return sum(map(_resident, pids))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):  # it has ended
        return 0


def proportional_memory(pids: Iterable[int]) -> int:
    """Return the bytes of processes; pages that others share count in parts (PSS)."""
    return sum(map(_pss, pids))


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def total_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _all() -> dict[int, _Status]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return {pid: status for pid in pids if (status := _status(pid)) is not None}


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none gets lost."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # Linux
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_adopted(children: frozenset[int], below: Iterable[Process]) -> None:
    """Let go of adopted processes that have ended.

    Args:
        children: those of this program's own, whose exit statuses others wait for.
        below: the processes below this one.
    """
    for pid in _ended_children(below):
        if pid not in children:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _ended_children(below: Iterable[Process]) -> Iterator[int]:
    own = os.getpid()
    for pid, _ in below:
        status = _status(pid)
        if status is not None and status.parent == own and status.state == "Z":
            yield pid


def kill_descendants() -> None:
    """Kill every process below this one, and those that they start meanwhile; this program ends next."""
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        alive = [each for each in descendants(os.getpid()) if each.fault != "has ended"]
        if not alive:
            break
        for each in alive:
            each.kill()
        time.sleep(_POLL_S)
    # Where nobody adopts them, they would stay as zombies.
    for pid in _ended_children(descendants(os.getpid())):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
