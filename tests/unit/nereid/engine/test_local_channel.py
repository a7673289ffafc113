"""Requests to a model of the same process."""

import asyncio
from time import monotonic
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError, invalid_arg
from app.core.inference import Cancel, Sink
from app.core.tensors import InferRequest, InferResponse, Timestamps
from nereid.engine import local_channel
from nereid.engine.local_channel import LocalChannel
from tests.waiting import let_run, until

REQUEST = InferRequest("m", "", ())


class Handler:
    """A model that answers when the test says so."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []
        self.cancelled = self.advised = 0
        self.at_once: InferResponse | None = None
        self.error: Exception | None = None

    def submit(self, request: InferRequest, sink: Sink) -> Cancel:
        if self.error is not None:
            raise self.error
        self.sinks.append(sink)
        if self.at_once is not None:
            sink(self.at_once)
        return self._cancel

    def _cancel(self, advice: bool = False) -> None:
        self.advised += advice
        self.cancelled += not advice

    async def control(self, verb: str, payload: Any) -> Any:
        if verb == "hang":
            await asyncio.Event().wait()
        return {"verb": verb, "payload": payload}


class Bench:
    def __init__(self) -> None:
        self.handler = Handler()
        self.channel = LocalChannel(self.handler, "m")
        self.received: list[InferResponse] = []

    def submit(self, **fields: Any) -> Any:
        request = InferRequest("m", "", (), **fields)
        return self.channel.send(request, self.received.append)

    @property
    def failures(self) -> list[tuple[ErrorCode, str]]:
        found = [response.failure for response in self.received]
        return [(failure.code, failure.message) for failure in found if failure is not None]


async def test_responses_reach_the_sink_until_the_final_one() -> None:
    bench = Bench()
    bench.submit()
    (sink,) = bench.handler.sinks
    sink(InferResponse(final=False))
    assert bench.channel.outstanding == 1
    sink(InferResponse())
    sink(InferResponse())  # too late
    assert [response.final for response in bench.received] == [False, True]
    assert bench.channel.outstanding == 0


async def test_a_sink_is_not_called_before_the_request_is_submitted() -> None:
    bench = Bench()
    bench.handler.at_once = InferResponse()
    bench.submit()
    assert not bench.received
    await until(lambda: bench.received)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (invalid_arg("bad"), ErrorCode.INVALID_ARG, "bad"),
        (ValueError("bug"), ErrorCode.INTERNAL, "the model failed to take the request"),
    ],
)
async def test_what_the_model_refuses_is_a_response(error: Exception, code: ErrorCode, text: str) -> None:
    bench = Bench()
    bench.handler.error = error
    bench.submit()
    await until(lambda: bench.received)
    assert bench.failures == [(code, text)] and bench.channel.outstanding == 0


async def test_a_cancelled_request_gets_one_failure_and_nothing_after_it() -> None:
    bench = Bench()
    call = bench.submit()
    call.cancel()
    assert not bench.received and bench.handler.cancelled == 1
    bench.handler.sinks[0](InferResponse())
    call.cancel()
    await let_run()
    assert bench.failures == [(ErrorCode.CANCELLED, "")] and bench.handler.cancelled == 1


async def test_advice_ends_nothing() -> None:
    bench = Bench()
    call = bench.submit()
    call.cancel(advice=True)
    bench.handler.sinks[0](InferResponse(final=False))
    bench.handler.sinks[0](InferResponse())
    call.cancel(advice=True)
    assert [response.final for response in bench.received] == [False, True] and not bench.failures
    assert (bench.handler.advised, bench.handler.cancelled) == (1, 0)


async def test_a_cancelled_request_that_is_traced_is_answered_with_its_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    call = bench.submit(trace="-")
    call.cancel()
    call.cancel()
    await let_run()
    assert not bench.received and bench.handler.cancelled == 1
    times = Timestamps(1, 2, 3, 4, 5, 6, 7)
    bench.handler.sinks[0](InferResponse(final=False))
    bench.handler.sinks[0](InferResponse("m", timestamps=times))
    assert bench.failures == [(ErrorCode.CANCELLED, "")] and bench.received[0].timestamps == times
    monkeypatch.setattr(local_channel, "AWAITED_S", 0.01)
    bench.submit(trace="-").cancel()
    await until(lambda: len(bench.received) == 2)
    assert bench.received[1].timestamps is None and bench.channel.outstanding == 0


async def test_a_request_fails_at_its_deadline() -> None:
    bench = Bench()
    bench.submit(deadline=monotonic() - 60)
    await until(lambda: bench.received)
    assert bench.failures == [(ErrorCode.UNAVAILABLE, "Deadline Exceeded")]
    assert bench.handler.cancelled == 1 and bench.channel.outstanding == 0


async def test_a_retired_channel_finishes_and_a_closed_one_gives_up() -> None:
    bench = Bench()
    bench.submit()
    bench.channel.retire()
    with pytest.raises(InferError, match="being unloaded"):
        bench.submit()
    bench.channel.close()
    await let_run()
    assert bench.failures == [(ErrorCode.UNAVAILABLE, "model 'm' was unloaded")]


async def test_control_calls_are_answered_in_time_or_not_at_all() -> None:
    channel = Bench().channel
    assert await channel.control("x", [1]) == {"verb": "x", "payload": [1]}
    with pytest.raises(TimeoutError):
        await channel.control("hang", timeout=0)
