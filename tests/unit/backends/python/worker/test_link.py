"""The links between a replica and a model's process: both ends here."""

import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError, not_found
from backends.python.worker import framing
from backends.python.worker.framing import (
    SHARED_BYTES,
    LinkClosed,
    Message,
    MessageSocket,
    Payload,
    failure_fields,
    pair,
)
from backends.python.worker.link import CallLink, Link
from tests.waiting import block_until

HEAD = framing._HEAD


def head(json_size: int, size: int, along: int, offset: int = 0, releases: int = 0) -> bytes:
    return HEAD.pack(json_size, size, offset, along, False, releases)


LARGE = bytes(range(256)) * (SHARED_BYTES // 256)


class Ends:
    """Two ends; `there` answers with what it was sent."""

    def __init__(self) -> None:
        self.sockets = pair()
        self.here = Link(self.sockets[0], lambda message, payload: None)
        self.there = Link(self.sockets[1], self._answer)
        self.raised: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._serve, args=(each,)) for each in (self.here, self.there)
        ]
        for thread in self.threads:
            thread.start()

    def _serve(self, link: Link) -> None:
        try:
            link.serve()
        except Exception as error:
            self.raised.append(error)
            link.shutdown()

    def _answer(self, message: Message, payload: Payload) -> None:
        if message["do"] == "refuse":
            self.there.reply_error(message, not_found("nobody").failure)
        elif message["do"] == "echo":
            parts = [payload.read(size) for size in message["sizes"]]
            self.there.reply(message, message["value"], parts)

    def end(self) -> None:
        self.here.shutdown()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()
        for each in (self.here, self.there):
            each.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.end()


BUFFERS = [[], [b""], [b"abc", b"", LARGE[:100]], [LARGE, b"x", LARGE]]


@pytest.mark.parametrize("buffers", BUFFERS)
def test_messages_and_tensors_round_trip(buffers: list[bytes], ends: Ends) -> None:
    sizes = [len(buffer) for buffer in buffers]
    value, payload = ends.here.request({"do": "echo", "value": [1, "ü"], "sizes": sizes}, buffers, 30)
    assert value == [1, "ü"]
    assert [bytes(payload.read(size)) for size in sizes] == buffers
    with pytest.raises(ValueError, match="less data than its tensors claim"):
        payload.read(1)


def test_texts_of_any_size_round_trip(ends: Ends) -> None:
    """Those that are too long for a packet go another way."""
    for size in (SHARED_BYTES - 1000, SHARED_BYTES, 100 * SHARED_BYTES):
        asked = {"do": "echo", "value": "ü" + "x" * size, "sizes": [3]}
        value, payload = ends.here.request(asked, [b"abc"], 30)
        assert value == asked["value"] and bytes(payload.read(3)) == b"abc"


def test_many_threads(ends: Ends) -> None:
    wrong: list[int] = []

    def ask(number: int) -> None:
        data = bytes([number]) * (number * 5000)
        _, payload = ends.here.request({"do": "echo", "value": None, "sizes": [len(data)]}, [data], 60)
        if payload.read(len(data)) != data:
            wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_errors_and_ends(ends: Ends) -> None:
    with pytest.raises(InferError, match="nobody") as caught:
        ends.here.request({"do": "refuse"}, timeout=30)
    assert caught.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(TimeoutError):
        ends.here.request({"do": "nothing"}, timeout=0.01)
    threading.Timer(0.05, ends.there.shutdown).start()
    with pytest.raises(LinkClosed):
        ends.here.request({"do": "nothing"}, timeout=30)
    with pytest.raises(LinkClosed):
        ends.here.request({"do": "echo"}, timeout=30)


def test_tensors_of_a_message_do_not_live_until_the_next_one(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "_TELL_S", 0.001)
    ends.here.send({"do": "nothing"}, [LARGE])
    block_until(lambda: not ends.here._sent.live, "the other end keeps them", 5)


def test_a_destructor_that_sends_while_its_thread_does(ends: Ends) -> None:
    ends.here._sender = threading.get_ident()  # as in the middle of a message
    ends.here.send({"do": "echo", "value": 1, "sizes": [], "id": 99})
    assert len(ends.here._deferred) == 1
    ends.here._sender = 0
    ends.here.request({"do": "echo", "value": 2, "sizes": []}, timeout=30)
    assert not ends.here._deferred


@pytest.fixture
def call() -> Iterator[tuple[CallLink, MessageSocket]]:
    ours, theirs = pair()
    ends = CallLink(ours), MessageSocket(theirs)
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize("buffers", BUFFERS)
def test_a_caller_receives_its_reply(buffers: list[bytes], call: tuple[CallLink, MessageSocket]) -> None:
    ours, theirs = call

    def answer() -> None:
        received = theirs.receive()
        assert received is not None
        message, payload = received
        theirs.send({"value": message["value"]}, [payload.read(len(buffer)) for buffer in buffers])

    answering = threading.Thread(target=answer)
    answering.start()
    value, payload = ours.call({"value": [1, "ü"]}, buffers)
    assert value == [1, "ü"]
    assert [bytes(payload.read(len(buffer))) for buffer in buffers] == buffers
    answering.join(30)


def test_a_call_waits_for_room_though_a_loop_has_made_the_socket_non_blocking(
    call: tuple[CallLink, MessageSocket],
) -> None:
    ours, theirs = call
    ours._socket.setblocking(False)
    filler = bytes(100_000)
    with pytest.raises(LinkClosed):  # there is no room for another
        for _ in range(1000):
            ours.send({"do": "fill"}, [filler])

    def answer() -> None:
        while (received := theirs.receive()) is not None:
            if received[0]["do"] == "execute":
                theirs.send({"value": 3})
                return

    begun = threading.Timer(0.1, answer)
    begun.start()
    assert ours.call({"do": "execute"}, [filler], timeout=30)[0] == 3
    begun.join(30)


def test_calls_that_fail(call: tuple[CallLink, MessageSocket]) -> None:
    ours, theirs = call
    theirs.send({"error": failure_fields(not_found("nobody").failure)})
    with pytest.raises(InferError, match="nobody"):
        ours.call({})
    with pytest.raises(TypeError):
        ours.call({"value": object()})
    with pytest.raises(TimeoutError, match=r"no reply within 0\.01 s"):
        ours.call({}, timeout=0.01)
    theirs._socket.send(head(2**32 - 1, 0, 0))
    with pytest.raises(LinkClosed, match="an impossible size"):
        ours.call({})
    while theirs.receive() is not None:  # what was asked; then the end, since nothing can follow
        pass
    with pytest.raises(LinkClosed):
        ours.call({})


def memory(seal: bool) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 100)
    if seal:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, framing._SEALS)
    return descriptor


@pytest.mark.parametrize(
    ("start", "make", "message"),
    [
        (head(2, 100, 1), lambda: memory(seal=False), "shared memory that is not sealed"),
        (head(2, 101, 1), lambda: memory(seal=True), "smaller than the message says"),
        (head(2, 100, 1), None, "an impossible size"),
        (head(2, 0, 0), lambda: memory(seal=True), "an impossible size"),
        (head(2**32 - 1, 0, 0), None, "an impossible size"),
        (head(2, 2**63, 0), None, "an impossible size"),
        (head(2, 100, 4), lambda: memory(seal=False), "not sealed or not of the announced size"),
        (head(2, 100, 3), lambda: memory(seal=True), "an impossible size"),
        (head(2, 100, 4), None, "an impossible size"),
        (head(2, 100, 3), None, "tensors in an arena that was not sent"),
        (head(2, 101, 4), lambda: memory(seal=True), "outside the arena of 100"),
        (head(2, 100, 4, offset=64), lambda: memory(seal=True), "outside the arena of 100"),
        (head(2, 0, 0, releases=1) + bytes(4), None, "a release of tensors that were not sent"),
        (head(2, 0, 0)[:5], None, "without a head"),
        (head(3, 0, 0), None, "an impossible size"),
        (head(1, 0, 0), None, "an impossible size"),
        (head(SHARED_BYTES, 100, 1), lambda: memory(seal=True), "an impossible size"),
        (head(2, 0, 0, releases=9), None, "an impossible size"),
    ],
)
def test_malformed_messages_are_refused(start: bytes, make: Callable[[], int] | None, message: str) -> None:
    ours, theirs = pair()
    link = Link(ours, lambda *_: pytest.fail("taken"))
    descriptors: list[Any] = [make()] if make else []
    socket.send_fds(theirs, [start + (b"{}" if len(start) >= HEAD.size else b"")], descriptors)
    theirs.close()
    with pytest.raises(ValueError, match=message):
        link.serve()
    for descriptor in descriptors:
        os.close(descriptor)
    ours.close()
