"""Measures the cost of a request on its whole way, in figures that do not depend on the machine.

    python -m benchmarks.path            the figures beside the committed ones, and where they come from
    python -m benchmarks.path --write    commit to these (benchmarks/path_limits.json)

Of one small request, answered before the next is sent, all threads together: bytecodes, calls of Python and C
functions, blocks allocated, objects left in cycles, which stay until the garbage collector looks. Of a large
tensor, per byte of it: bytes allocated, bytes put into shared memory, bytes sent over the channel. Where the
data plane is compiled, bytecodes and calls of that one too, with a model in Python and dynamic batching: what
C does is not counted, what it calls is.
`tests/unit/test_path.py` fails when one grows by more than `MARGIN`.

They hold for one version of Python, and say nothing of what a bytecode, a call or a system call costs:
`benchmarks.run` measures that.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from app.ingress.net import listener
from app.native.choice import is_native
from app.transport.channel.connection import Connection
from app.transport.memory.arena import ArenaWriter
from app.transport.settings import TransportSettings
from benchmarks import results
from benchmarks.counting import Counter, Work
from benchmarks.one_process import Callers, running
from benchmarks.report import table
from deployments.event_loop_execution import policy

LIMITS = Path(__file__).with_name("path_limits.json")
PYTHON = ".".join(platform.python_version_tuple()[:2])
PROTOCOLS = ("http", "grpc")
NATIVE = tuple(f"{protocol} native" for protocol in PROTOCOLS)
MARGIN = 0.15
SMALL, LARGE = 16, 1 << 20
"""Elements of four bytes."""
WARM_UP, REQUESTS, SLOW_REQUESTS, LARGE_REQUESTS = 20, 100, 5, 2
LARGE_WARM_UP = 3
"""After these, each side knows the memory that the other lends from."""
LONG_S = 3600.0

Figures = dict[str, float]
Threads = dict[str, Figures]


class Crossing:
    """Bytes sent between ingress and replica, both directions."""

    def __init__(self) -> None:
        self.slabs = self.channel = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        allocate, buffer_updated = ArenaWriter.allocate, Connection.buffer_updated

        def allocating(arena: ArenaWriter, nbytes: int) -> Any:
            found = allocate(arena, nbytes)
            self.slabs += nbytes if found else 0
            return found

        def updated(connection: Connection, nbytes: int) -> None:
            self.channel += nbytes
            buffer_updated(connection, nbytes)

        with (
            patch.object(ArenaWriter, "allocate", allocating),
            patch.object(Connection, "buffer_updated", updated),
        ):
            yield


def measure() -> dict[str, Threads]:
    """Return figures by protocol and thread; those of "all" are the sums."""
    found = _measure("python", figures)
    if is_native("auto"):
        found |= zip(NATIVE, _measure("native", few_figures).values(), strict=True)
    return found


def _measure(
    data_plane: str, figures: Callable[[str, Callers, Counter, Crossing], Threads]
) -> dict[str, Threads]:
    counter, crossing = Counter(), Crossing()
    interval = sys.getswitchinterval()
    # Nothing depends on the clock: a thread goes on until it waits, and no timer of a connection expires.
    sys.setswitchinterval(LONG_S)
    transport = TransportSettings(
        data_plane=data_plane, heartbeat=LONG_S, arena_trim_after=LONG_S, busy_poll_us=0
    )
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            counter.installed(),
            crossing.counted(),
            patch.object(listener, "_CHECK_INTERVAL_S", LONG_S),
            patch.object(policy, "SHORT_NS", LONG_S * 1e9),  # counted, executions take long
            patch.object(policy, "LONG_NS", LONG_S * 1e9),
            running(Path(directory), transport, python_model=data_plane == "native") as callers,
            uncollected(),
        ):
            return {protocol: figures(protocol, callers, counter, crossing) for protocol in PROTOCOLS}
    finally:
        sys.setswitchinterval(interval)


@contextmanager
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def figures(protocol: str, callers: Callers, counter: Counter, crossing: Crossing) -> Threads:
    def send(elements: int, requests: int) -> Callable[[], None]:
        return lambda: callers.send(protocol, elements, requests)

    send(SMALL, WARM_UP)()
    gc.collect()
    small = per(REQUESTS, counter.of(send(SMALL, REQUESTS)), "bytecodes", "calls")
    cycles = gc.collect() / REQUESTS
    slow = per(SLOW_REQUESTS, counter.blocks_of(send(SMALL, SLOW_REQUESTS)), "blocks")
    send(LARGE, LARGE_WARM_UP)()
    before = crossing.slabs, crossing.channel
    nbytes = 4 * LARGE * LARGE_REQUESTS
    large = per(nbytes, counter.nbytes_of(send(LARGE, LARGE_REQUESTS)), "nbytes")
    found = {name: {**small[name], **slow[name], "allocated": large[name]["nbytes"]} for name in small}
    total = {figure: sum(thread[figure] for thread in found.values()) for figure in found["ingress"]}
    total["cycles"] = cycles
    total["slabs"] = (crossing.slabs - before[0]) / nbytes
    total["channel"] = (crossing.channel - before[1]) / nbytes
    return {**{name: thread for name, thread in found.items() if thread["bytecodes"]}, "all": total}


def few_figures(protocol: str, callers: Callers, counter: Counter, _: Crossing) -> Threads:
    """Return bytecodes and calls alone."""
    callers.send(protocol, SMALL, WARM_UP)
    small = per(REQUESTS, counter.of(lambda: callers.send(protocol, SMALL, REQUESTS)), "bytecodes", "calls")
    total = {figure: sum(thread[figure] for thread in small.values()) for figure in ("bytecodes", "calls")}
    return {**{name: thread for name, thread in small.items() if thread["bytecodes"]}, "all": total}


def per(count: int, threads: Mapping[str, Work], *names: str) -> Threads:
    return {thread: {name: getattr(work, name) / count for name in names} for thread, work in threads.items()}


def limits() -> dict[str, Figures]:
    """Return the committed figures by protocol; none for another version of Python."""
    found: dict[str, Any] = json.loads(LIMITS.read_text())
    return found["figures"] if found["python"] == PYTHON else {}


def write_limits(found: Mapping[str, Threads]) -> None:
    totals = {
        protocol: {name: round(value, 2) for name, value in threads["all"].items()}
        for protocol, threads in found.items()
    }
    LIMITS.write_text(json.dumps({"python": PYTHON, "figures": totals}, indent=2) + "\n")


def exceeded(found: Mapping[str, float], committed: Mapping[str, float]) -> list[str]:
    """Return the figures that grew by more than the margin; small ones, by more than 0.1."""
    return [
        f"{name}: {found[name]:.2f}, committed are {committed[name]:.2f}"
        for name in committed
        if found[name] > max(committed[name] * (1 + MARGIN), committed[name] + 0.1)
    ]


def rows(
    found: Mapping[str, Threads], roles: Iterable[str], committed: Mapping[str, Figures]
) -> list[list[str]]:
    lines = []
    for protocol, threads in found.items():
        known = committed.get(protocol, {})
        for name, figure in threads["all"].items():
            shares = [threads.get(role, {}).get(name) for role in roles]
            lines.append(
                [
                    *(protocol, name, *("" if share is None else f"{share:.2f}" for share in shares)),
                    *(f"{figure:.2f}", f"{limit:.2f}" if (limit := known.get(name)) is not None else "-"),
                ]
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="commit to these figures")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, nothing else")
    results.add_flag(parser)
    options = parser.parse_args()
    measured = measure()
    if options.json:
        print(json.dumps(measured))
        return
    with results.recorded("path", options.record):
        print_table(measured)
    if options.write:
        write_limits(measured)


def print_table(found: Mapping[str, Threads]) -> None:
    """Print the figures of each thread beside the committed ones."""
    # A thread that had nothing to do for one of the protocols is not among its own.
    roles = dict.fromkeys(name for threads in found.values() for name in threads if name != "all")
    print(table(["", "figure", *roles, "all", "committed"], rows(found, roles, limits())))


if __name__ == "__main__":
    main()
