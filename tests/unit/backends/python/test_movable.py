"""Instances that execute in the replica while that is short, and in a process afterwards."""

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from app.core.errors import internal
from backends.base import Instance, Request
from backends.python import movable
from backends.python.backend import PythonBackend
from backends.python.execution.execution import Clocked, Execution
from backends.python.movable import Movable
from backends.python.worker.supervisor import Supervisor
from tests.waiting import block_until

SHORT, LONG = 400_000, 400_001


class Clock:
    """Time that passes while something executes."""

    now = 0

    def monotonic_ns(self) -> int:
        return self.now


class Here:
    """An execution that takes as long as it is told."""

    def __init__(self, clock: Clock) -> None:
        self.takes = SHORT
        self.executed = 0
        self.closed = False
        self._clock = clock

    def execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        self.executed += 1
        self._clock.now += self.takes
        if not requests:
            raise ValueError("no")

    def is_ready(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True


class There:
    """A process."""

    def __init__(self) -> None:
        self.executed = 0
        self.closed = False

    def execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        self.executed += 1

    def begin(self, requests: Sequence[Request], clock: Clocked) -> Any:
        return "begun"

    def is_ready(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


class Bench:
    """A movable instance whose process starts when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(movable, "time", self.clock)
        self.here, self.there = Here(self.clock), There()
        self.may_start = threading.Event()
        self.starts = 0
        self.fails = False
        self.instance = Instance.__new__(Instance)
        self.instance.name, self.instance.elsewhere = "m_0_0", False
        self.movable = Movable(cast(Execution, self.here), self.instance, self._start)

    def _start(self) -> Supervisor:
        self.starts += 1
        assert self.may_start.wait(60)
        if self.fails:
            raise internal("no process")
        return cast(Supervisor, self.there)

    def execute(self, takes: int, count: int = 1) -> None:
        self.here.takes = takes
        for _ in range(count):
            self.movable.execute(cast(Any, [1]), cast(Any, None))

    def moved(self) -> None:
        self.may_start.set()
        block_until(lambda: self.movable.supervisor is not None)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_short_executions_stay(bench: Bench) -> None:
    bench.execute(SHORT, 100)
    assert bench.here.executed == 100 and not bench.starts and not bench.instance.elsewhere
    assert bench.movable.begin([], cast(Any, None)) is None and bench.movable.is_ready()


def test_a_few_long_ones_stay(bench: Bench) -> None:
    for _ in range(20):
        bench.execute(LONG, 8)
        bench.execute(SHORT, 8)
    assert not bench.starts


def test_long_ones_move_when_there_is_a_process(bench: Bench) -> None:
    bench.execute(LONG, 15)
    assert not bench.starts
    bench.execute(LONG)
    block_until(lambda: bench.starts == 1)
    bench.execute(LONG, 50)
    assert bench.here.executed == 66 and not bench.there.executed and not bench.instance.elsewhere
    bench.moved()
    assert bench.instance.elsewhere
    bench.execute(LONG, 3)
    assert (bench.here.executed, bench.there.executed, bench.starts) == (66, 3, 1)
    assert bench.movable.begin([], cast(Any, None)) == "begun" and not bench.movable.is_ready()
    bench.movable.close()
    assert bench.here.closed and bench.there.closed


def test_one_without_a_process_stays(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fails = True
    bench.may_start.set()
    bench.execute(LONG, 16)
    block_until(lambda: "instance 'm_0_0' stays in its replica: no process" in caplog.text)
    bench.execute(LONG, 50)
    assert bench.here.executed == 66 and bench.starts == 1 and not bench.instance.elsewhere
    bench.movable.close()
    assert bench.here.closed


def test_one_that_is_closed_while_it_moves(bench: Bench) -> None:
    bench.execute(LONG, 16)
    closing = threading.Thread(target=bench.movable.close)
    closing.start()
    assert not bench.here.closed
    bench.may_start.set()
    closing.join(60)
    assert bench.here.closed and bench.there.closed


def test_an_execution_that_raises_counts_for_nothing(bench: Bench) -> None:
    bench.here.takes = LONG
    for _ in range(20):
        with pytest.raises(ValueError, match="no"):
            bench.movable.execute([], cast(Any, None))
    assert not bench.starts


def test_nothing_is_left_of_one_that_moved_while_it_was_finalized(bench: Bench) -> None:
    backend = PythonBackend()
    bench.instance.state = bench.movable
    bench.execute(LONG, 16)
    block_until(lambda: bench.starts == 1)
    backend._supervisors.add(cast(Supervisor, bench.there))  # as what starts it does
    remove = backend._supervisors.remove

    def remove_and_start(supervisor: Supervisor) -> None:
        remove(supervisor)
        bench.may_start.set()

    backend._supervisors.remove = remove_and_start  # type: ignore[method-assign]
    backend.instance_finalize(bench.instance)
    assert bench.there.closed and not backend._supervisors._all and bench.instance.state is None
