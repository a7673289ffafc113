"""Work that is done off the event loop for requests of one front."""

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from app.ingress.rest.context import RouteContext
from tests.waiting import let_run, until


class Exchange(SimpleNamespace):
    """A request whose client is there, and what it fails with."""

    closed = False
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.error = error


def run(context: RouteContext, exchange: Any, work: Any, then: Any) -> None:
    RouteContext.run_in_thread(context, exchange, work, then)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere niceness is of the whole process")
async def test_long_work_gives_way_to_the_loop() -> None:
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    seen: list[tuple[str, int]] = []

    def work() -> tuple[str, int]:
        thread = threading.current_thread()
        return thread.name, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    context: Any = None
    for _ in range(3):
        run(context, Exchange(), work, seen.append)
    await until(lambda: len(seen) == 3)
    assert all(name.startswith("long-work") for name, _ in seen)
    assert {niceness for _, niceness in seen} == {min(19, own + 10)}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


async def test_work_that_fails_fails_its_request_alone() -> None:
    exchange, gone, seen, left = Exchange(), Exchange(closed=True), list[Any](), list[int]()

    def fail() -> None:
        raise ValueError("no")

    context: Any = None
    run(context, exchange, fail, seen.append)
    run(context, gone, lambda: left.append(1), seen.append)
    run(context, Exchange(), lambda: 2, seen.append)
    await until(lambda: seen and exchange.error and left)
    await let_run()  # what the loop was told of work that has ended
    assert seen == [2] and str(exchange.error) == "no"
