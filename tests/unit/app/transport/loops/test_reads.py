"""What a server does at the end of a read, and what it leaves to the next turn of its loop."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from app.core.inference import Sink
from app.core.tensors import InferRequest
from app.transport.loops.reads import begin_read, call_after_read, end_read
from tests.unit.app.transport.conftest import Pair, echo, infer, make_request
from tests.waiting import until

Start = Callable[..., Awaitable[Pair]]


async def test_callbacks_are_called_in_order_at_the_end_of_a_read() -> None:
    loop, called = asyncio.get_running_loop(), list[str]()
    begin_read()
    for name in ("a", "b"):
        call_after_read(loop, partial(called.append, name))
    assert not called
    end_read(loop)
    assert called == ["a", "b"]


async def test_what_a_callback_asks_for_comes_in_the_next_turn() -> None:
    loop, called = asyncio.get_running_loop(), list[str]()

    def first() -> None:
        call_after_read(loop, lambda: called.append("later"))

    begin_read()
    call_after_read(loop, first)
    end_read(loop)
    assert not called
    await asyncio.sleep(0)
    assert called == ["later"]


async def test_without_a_read_it_is_the_next_turn() -> None:
    called = list[str]()
    call_after_read(asyncio.get_running_loop(), lambda: called.append("a"))
    assert not called
    await asyncio.sleep(0)
    assert called == ["a"]


async def test_an_exception_ends_neither_the_read_nor_the_other_callbacks() -> None:
    loop, called, reported = asyncio.get_running_loop(), list[str](), list[object]()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    fault = RuntimeError("a fault")

    def failing() -> None:
        raise fault

    begin_read()
    call_after_read(loop, failing)
    call_after_read(loop, lambda: called.append("b"))
    end_read(loop)
    assert (called, reported) == (["b"], [fault])


@pytest.mark.usefixtures("data_plane")
async def test_a_server_with_one_client_answers_within_its_read(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await start()
    loop, turns = asyncio.get_running_loop(), list[str]()

    def submit(request: InferRequest, sink: Sink) -> Callable[[], None]:
        loop.call_soon(turns.append, "turn")
        call_after_read(loop, partial(turns.append, request.id))
        call_after_read(loop, partial(sink, echo(request)))
        return lambda: None

    monkeypatch.setattr(pair.handler, "submit", submit)
    first = await pair.connect()
    await infer(first, make_request(id="alone"))
    second = await pair.connect()
    await infer(first, make_request(id="one of two"))
    second.close()
    await until(lambda: len(pair.server.connections) == 1)
    await infer(first, make_request(id="alone again"))
    assert turns == ["alone", "turn", "turn", "one of two", "alone again", "turn"]
