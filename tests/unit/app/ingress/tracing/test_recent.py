"""Traces for those who look at the last ones, without settings and files."""

import asyncio

import numpy as np
import pytest

from app.core.observability.live_settings import LiveSettings
from app.core.tensors import UNNAMED_TRACE, InferRequest, InferResponse, Tensor, Timestamps, TracedCall
from app.ingress.tracing import recent
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.ingress.tracing.recent import MAX_TRACES
from tests.unit.app.ingress.tracing.observed import observe

REQUEST = InferRequest("m", "", (Tensor.from_array("IN", np.zeros((1, 1 << 20), np.uint8)),), id="r" * 1000)
ORIGIN = RequestOrigin("http", 50_000)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(recent, "monotonic", lambda: now[0])
    return now


def ask(observer: Observer) -> bool:
    """Make a request that has a call in it; return whether it was traced."""
    request, sink = observe(observer, REQUEST, lambda response: None, ORIGIN)
    inner = TracedCall("inner", "1", "", Timestamps(*range(120_000, 127_000, 1000)))
    outer = TracedCall("outer", "2", "", Timestamps(*range(110_000, 117_000, 1000)), calls=(inner,))
    times = Timestamps(*range(100_000, 107_000, 1000))
    sink(InferResponse("m", "3", (), timestamps=times, calls=(outer,), final=True))
    return request.trace == UNNAMED_TRACE


def test_nothing_is_traced_while_nobody_looks(clock: list[float]) -> None:
    async def scenario() -> None:
        observer = Observer(LiveSettings())
        assert not observer.enabled and not ask(observer)
        assert observer.recent_traces() == []
        assert observer.enabled and ask(observer)
        clock[0] += 6
        assert not ask(observer)
        observer._refresh_enabled()
        assert not observer.enabled
        observer.close()

    asyncio.run(scenario())


def test_trace_has_the_request_and_the_calls_that_it_made(clock: list[float]) -> None:
    async def scenario() -> None:
        observer = Observer(LiveSettings())
        observer.recent_traces()
        assert ask(observer)
        (trace,) = observer.recent_traces()
        assert [(span.model, span.version) for span in trace.spans] == [
            ("m", "3"), ("outer", "2"), ("inner", "1")
        ]  # fmt: skip
        request, outer, inner = trace.spans
        assert (request.parent, outer.parent, inner.parent) == (0, request.number, outer.number)
        times = dict(inner.stamps)
        assert times["REQUEST_END"] - times["REQUEST_START"] == pytest.approx(6.0)  # microseconds
        assert len(request.request_id) == 256
        assert observer.recent_traces(trace.number) == []
        observer.close()

    asyncio.run(scenario())


def test_some_requests_a_second_are_traced_and_the_last_are_kept(clock: list[float]) -> None:
    async def scenario() -> None:
        observer = Observer(LiveSettings())
        observer.recent_traces()
        assert [ask(observer) for _ in range(3)] == [True, False, False]
        for _ in range(MAX_TRACES + 20):
            clock[0] += 0.11
            observer.recent_traces()
            assert ask(observer)
        assert len(observer.recent_traces()) == MAX_TRACES
        observer.close()

    asyncio.run(scenario())
