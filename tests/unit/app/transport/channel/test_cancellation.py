"""Requests that are cancelled: the replica of a traced one says when it had it; advice ends none."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from app.core.failures import CANCELLED
from app.core.tensors import InferResponse, Timestamps
from app.transport.channel import client
from tests.unit.app.transport.conftest import Pair, echo, infer, make_request
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("data_plane")

Start = Callable[..., Awaitable[Pair]]


async def test_cancelled_request_that_is_traced_is_answered_with_its_times(start: Start, scheme: str) -> None:
    pair = await start()
    channel = await pair.connect(scheme)
    seen: list[InferResponse] = []
    call = channel.send(make_request(model="hold", id="1", trace="-"), seen.append)
    await until(lambda: len(pair.handler.replies) == 1)
    call.cancel()
    call.cancel()
    await until(lambda: pair.handler.cancelled == ["1"])
    times = Timestamps(1, 2, 3, 4, 5, 6, 7)
    pair.handler.replies[0](echo(make_request(100_000), final=False))
    assert seen == []
    pair.handler.replies[0](msgspec.structs.replace(echo(make_request(id="1")), timestamps=times))
    await until(lambda: bool(seen))
    assert seen == [InferResponse(id="1", failure=CANCELLED, timestamps=times)]
    assert channel.outstanding == pair.server.outstanding == 0
    await infer(channel, make_request())


async def test_times_of_a_cancelled_request_are_not_awaited_for_ever(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "AWAITED_S", 0.01)
    pair = await start()
    channel = await pair.connect()
    seen: list[InferResponse] = []
    channel.send(make_request(model="hold", id="1", trace="-"), seen.append).cancel()
    await until(lambda: bool(seen))
    assert seen == [InferResponse(id="1", failure=CANCELLED)]
    await until(lambda: pair.server.outstanding == 0)


async def test_advice_reaches_the_replica_whose_responses_still_come(start: Start, scheme: str) -> None:
    pair = await start()
    channel = await pair.connect(scheme)
    seen: list[InferResponse] = []
    call = channel.send(make_request(model="hold", id="1"), seen.append)
    await until(lambda: len(pair.handler.replies) == 1)
    call.cancel(advice=True)
    await until(lambda: pair.handler.advised == ["1"])
    reply, answer = pair.handler.replies[0], echo(make_request(100_000), final=False)
    reply(answer)
    call.cancel(advice=True)
    await until(lambda: pair.handler.advised == ["1", "1"])
    reply(echo(make_request(id="1")))
    await until(lambda: len(seen) == 2)
    assert [(response.final, response.failure) for response in seen] == [(False, None), (True, None)]
    call.cancel(advice=True)
    await infer(channel, make_request())
    assert channel.outstanding == pair.server.outstanding == 0 and pair.handler.cancelled == []


async def test_a_cancellation_may_follow_advice(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    seen: list[InferResponse] = []
    call = channel.send(make_request(model="hold", id="1"), seen.append)
    call.cancel(advice=True)
    call.cancel()
    await until(lambda: pair.handler.cancelled == ["1"] == pair.handler.advised)
    assert seen == [InferResponse(id="1", failure=CANCELLED)]
