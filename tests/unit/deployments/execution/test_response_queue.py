"""When the loop is woken for the responses of streams."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from app.core.tensors import InferRequest, InferResponse
from deployments.execution import queued_request
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from tests.waiting import until


class FakeLoop:
    """Keeps what it is to call, until the test has it called."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.later.append(callback)


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        clock = SimpleNamespace(monotonic=lambda: self.now, monotonic_ns=lambda: int(self.now * 1e9))
        monkeypatch.setattr(queued_request, "time", clock)
        self.loop = FakeLoop()
        self.delivered: list[str] = []
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.queue = ResponseQueue(loop, lambda request, response: self.delivered.append(response.id))

    def request(self) -> QueuedRequest:
        return QueuedRequest(InferRequest("m", "", ()), lambda response: None, self.queue, 1)

    def run(self, callbacks: list[Callable[[], None]]) -> int:
        """Call what is due; return how many there were."""
        due = callbacks[:]
        callbacks.clear()
        for callback in due:
            callback()
        return len(due)

    def respond(self, request: QueuedRequest, name: str, final: bool = False) -> None:
        request.deliver(InferResponse("m", "1", id=name, final=final))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def begin_stream(bench: Bench) -> QueuedRequest:
    """Return a request that has responded twice at once, which the loop now looks after by its timer."""
    request = bench.request()
    for name in "ab":
        bench.respond(request, name)
        assert bench.run(bench.loop.soon) == 1
    assert len(bench.loop.later) == 1
    return request


def test_responses_of_a_fast_stream_wait_for_the_timer(bench: Bench) -> None:
    request = begin_stream(bench)
    bench.respond(request, "c")
    bench.respond(request, "d")
    assert not bench.loop.soon
    bench.run(bench.loop.later)
    assert bench.delivered == ["a", "b", "c", "d"]
    assert len(bench.loop.later) == 1, "it goes on"


def test_stream_that_has_paused_wakes_the_loop(bench: Bench) -> None:
    request = begin_stream(bench)
    bench.run(bench.loop.later)
    assert not bench.loop.later
    bench.now += 0.02
    bench.respond(request, "c")
    assert bench.run(bench.loop.soon) == 1
    assert not bench.loop.later, "it responds rarely"
    assert bench.delivered == ["a", "b", "c"]


@pytest.mark.parametrize("own", [True, False])
def test_final_response_and_other_requests_wake_the_loop(bench: Bench, own: bool) -> None:
    request = begin_stream(bench)
    bench.respond(request, "c")
    bench.respond(request if own else bench.request(), "d", final=own)
    assert bench.run(bench.loop.soon) == 1
    assert bench.delivered == ["a", "b", "c", "d"]
    assert len(bench.loop.later) == 1, "one timer, however often the loop is woken"


async def test_stream_that_is_ahead_waits_for_the_loop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued_request, "_LONGEST_WAIT_S", 60)
    request = begin_stream(bench)
    sent: list[int] = []

    def respond() -> None:
        for i in range(queued_request._AHEAD + 1):
            bench.respond(request, str(i))
            sent.append(i)

    model = threading.Thread(target=respond)
    model.start()
    await until(lambda: len(sent) == queued_request._AHEAD - 1)
    assert len(bench.queue._responses) <= queued_request._AHEAD
    while model.is_alive():
        bench.run(bench.loop.later)
        bench.run(bench.loop.soon)
        await asyncio.sleep(0)
    bench.queue.flush()
    assert bench.delivered == ["a", "b", *map(str, range(queued_request._AHEAD + 1))]


async def test_stream_does_not_wait_for_its_own_loop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued_request, "_LONGEST_WAIT_S", 60)
    request = begin_stream(bench)
    monkeypatch.setattr(bench.queue, "_loop", asyncio.get_running_loop())
    for i in range(3 * queued_request._AHEAD):
        bench.respond(request, str(i))
    bench.queue.flush()
    assert len(bench.delivered) == 2 + 3 * queued_request._AHEAD
