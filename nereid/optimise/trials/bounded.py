"""A program in a process group of its own, which is ended when it takes too long or too much memory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from app.core.system.processes import stat_fields

_POLL_S: Final = 0.02
_GROUP_S: Final = 0.5
"""From one look at all processes of the group to the next; its first one is looked at each time."""
_PAGE: Final = resource.getpagesize()
_GROUP: Final = 3
"""The place of the process group among `stat_fields`."""
_RSS: Final = 22
"""That of the resident pages."""
_LAST_BYTES: Final = 4096
_CPU_FACTOR: Final = 4


class Limits(NamedTuple):
    """What a program may take: seconds, and bytes of memory, all of its processes together."""

    seconds: float = 1800.0
    memory: int = 8 << 30


class Ended(NamedTuple):
    """How a program ended.

    Attributes:
        why: it did not end by itself, or ended with a failure; "" if all is well.
        seconds: it took.
        peak: the most memory that was seen, in bytes.
    """

    why: str
    seconds: float
    peak: int


def run(
    command: Sequence[str],
    limits: Limits,
    log: Path,
    environment: Mapping[str, str] | None = None,
    look: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a program to its end, or to that of its limits; nothing of its group is left. Blocks.

    Args:
        command: the program.
        limits: of the program and all that it starts in its group.
        log: gets what it prints; created.
        environment: of the process; this one's by default.
        look: is called now and then; what it raises ends the program, and is raised.

    Raises:
        OSError: it cannot be started.
    """
    started = time.monotonic()
    with log.open("wb") as printed:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
    try:
        _bound(process.pid, limits)
        why, peak = _watch(process, limits, look)
    finally:
        end(process)
    return Ended(why or _failure(process.returncode, log), time.monotonic() - started, peak)


def _watch(process: subprocess.Popen[bytes], limits: Limits, look: Callable[[], None]) -> tuple[str, int]:
    """Wait until a program ends, or has to be ended; return why, and the most memory that was seen."""
    started, others_at, peak = time.monotonic(), 0.0, 0
    while process.poll() is None:
        now = time.monotonic()
        whole = now >= others_at
        taken = _group_memory(process.pid) if whole else _memory(process.pid)
        if whole:
            others_at = now + _GROUP_S
            look()
        peak = max(peak, taken)
        if taken > limits.memory:
            return f"ended at its limit of {_size(limits.memory)} of memory", peak
        if now - started > limits.seconds:
            return f"ended at its limit of {limits.seconds:g} s", peak
        time.sleep(_POLL_S)
    return "", peak


def _bound(pid: int, limits: Limits) -> None:
    """Have the kernel refuse what is far over the limits, should nobody look."""
    seconds = int(limits.seconds * _CPU_FACTOR * (os.cpu_count() or 1)) + 1
    bounds = {
        resource.RLIMIT_DATA: limits.memory,  # private memory that can be written; no files, no addresses
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
    }
    with suppress(ProcessLookupError):  # it has ended already
        for kind, most in bounds.items():
            _, hard = resource.prlimit(pid, kind)
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, kind, (bound, bound))


def _memory(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[_RSS]) * _PAGE if fields else 0


def _group_memory(group: int) -> int:
    """Return the resident bytes of all processes of a group; what they share counts for each."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdecimal() and (fields := stat_fields(int(name))) and int(fields[_GROUP]) == group:
            total += int(fields[_RSS]) * _PAGE
    return total


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failure(status: int, log: Path) -> str:
    """Return why a program that ended by itself has failed; "" if it has not."""
    if not status:
        return ""
    said = last_line(log)
    if "MemoryError" in said or "bad_alloc" in said:
        return f"needs more memory than its limit: {said}"
    if status < 0:
        return f"crashed: {signal.Signals(-status).name}{', after: ' + said if said else ''}"
    return f"failed: {said or f'exit status {status}'}"


def last_line(log: Path) -> str:
    """Return the last line of a file that has something, cut to what a report has room for."""
    with suppress(OSError):
        lines = log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""
    return ""


def _size(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB"
