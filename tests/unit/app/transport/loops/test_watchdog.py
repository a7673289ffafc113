"""The watchdog of a replica's event loop, under a clock that the test moves."""

import pytest

from app.transport.loops.suspension import ResponseFuture, run_suspendable
from app.transport.loops.watchdog import SLOW_S, STUCK_S, LoopWatchdog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watchdog(clock: Clock) -> LoopWatchdog:
    return LoopWatchdog("m", clock)


@pytest.mark.parametrize(("busy_s", "tripped"), [(SLOW_S, False), (SLOW_S + 0.1, True)])
def test_watchdog_trips_when_a_slow_execution_returns(
    watchdog: LoopWatchdog, clock: Clock, busy_s: float, tripped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        watchdog.enter()
        clock.now += busy_s
        watchdog.leave()
    assert watchdog.tripped is tripped
    assert caplog.text.count("model 'm' has kept the event loop of its replica busy for 1.1 s") == tripped
    assert watchdog.check() == ""


def test_check_reports_an_execution_that_does_not_return(
    watchdog: LoopWatchdog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    assert watchdog.check() == ""
    watchdog.enter()
    clock.now += SLOW_S
    assert watchdog.check() == "" and not watchdog.tripped
    clock.now += 1
    assert watchdog.check() == "" and watchdog.tripped
    clock.now += STUCK_S
    assert watchdog.check() == "model 'm' has kept the event loop of its replica busy for 32.0 s"
    assert len(caplog.records) == 1
    watchdog.leave()
    assert watchdog.check() == ""


def test_nested_stretches_count_as_one(watchdog: LoopWatchdog, clock: Clock) -> None:
    watchdog.enter()
    clock.now += SLOW_S
    watchdog.leave(watchdog.enter())
    assert not watchdog.tripped
    clock.now += 0.1
    watchdog.leave()
    assert watchdog.tripped


def test_a_suspended_execution_does_not_keep_the_loop(watchdog: LoopWatchdog, clock: Clock) -> None:
    response: list[ResponseFuture[int]] = []

    def execute() -> None:
        watchdog.enter()
        response.append(ResponseFuture())
        response[0].wait()
        clock.now += SLOW_S
        watchdog.leave()

    run_suspendable(watchdog, execute)
    clock.now += 2 * STUCK_S
    assert watchdog.check() == ""
    response[0].set(1)
    assert not watchdog.tripped
