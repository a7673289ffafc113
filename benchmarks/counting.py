"""Counts the work of code instead of timing it: equal on all machines with equal Python and packages."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

Trace = Callable[[FrameType, str, Any], Any]
"""Argument of `sys.settrace`; returns the function that traces the frame from then on."""


@dataclass
class Work:
    """Work of a thread.

    `calls` are those of Python and of C functions. `blocks` are allocations by Python, sampled between
    bytecodes: one that is freed within a bytecode is not seen, nor one from a type's free list. A call counts
    for one, its frame, which exists because of the tracing only. `nbytes` includes the first.
    """

    bytecodes: int = 0
    calls: int = 0
    blocks: int = 0
    nbytes: int = 0

    def __sub__(self, other: Work) -> Work:
        return Work(*(getattr(self, name) - getattr(other, name) for name in vars(self)))


class Counter:
    """Counts the work of each thread that starts within `installed`, by the thread's name.

    `look` is run at each bytecode; those that cost much time are on only while wanted.
    """

    def __init__(self) -> None:
        self.threads: defaultdict[str, Work] = defaultdict(Work)
        self._look: Callable[[Work], None] | None = None
        self._last = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.settrace(self._begin)
        threading.setprofile(self._begin_profile)
        try:
            yield
        finally:
            threading.settrace(None)
            threading.setprofile(None)

    def of(self, run: Callable[[], None]) -> dict[str, Work]:
        """Return bytecodes and calls of `run` by thread."""
        before = {name: Work(**vars(work)) for name, work in self.threads.items()}
        run()
        return {name: work - before.get(name, Work()) for name, work in self.threads.items()}

    def blocks_of(self, run: Callable[[], None]) -> dict[str, Work]:
        """Return the blocks of `run` too."""
        self._last = sys.getallocatedblocks()
        self._look = self._look_at_blocks
        try:
            return self.of(run)
        finally:
            self._look = None

    def nbytes_of(self, run: Callable[[], None]) -> dict[str, Work]:
        """Return the bytes of `run` too."""
        tracemalloc.start()
        self._look = self._look_at_bytes
        try:
            return self.of(run)
        finally:
            self._look = None
            tracemalloc.stop()

    def _look_at_blocks(self, work: Work) -> None:
        blocks = sys.getallocatedblocks()
        work.blocks += max(0, blocks - self._last)
        self._last = blocks

    def _look_at_bytes(self, work: Work) -> None:
        current, peak = tracemalloc.get_traced_memory()
        work.nbytes += max(0, peak - self._last)
        self._last = current
        tracemalloc.reset_peak()

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Trace:
        trace = self._tracer(self.threads[threading.current_thread().name])
        sys.settrace(trace)
        trace(frame, event, argument)
        return trace

    def _begin_profile(self, frame: FrameType, event: str, argument: Any) -> None:
        work = self.threads[threading.current_thread().name]

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            if event in ("call", "c_call"):
                work.calls += 1

        sys.setprofile(profile)

    def _tracer(self, work: Work) -> Trace:
        def trace(frame: FrameType, event: str, argument: Any) -> Trace:
            if event == "call":
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
            elif event == "opcode":
                work.bytecodes += 1
                if self._look is not None:
                    self._look(work)
            return trace

        return trace
