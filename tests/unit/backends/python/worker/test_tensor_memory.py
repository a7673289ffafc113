"""Tensors of messages in the arenas of both ends."""

import gc
import os
import select
from collections.abc import Iterator
from typing import Any

import pytest

from backends.python.worker import framing, tensor_memory
from backends.python.worker.framing import MessageSocket, Payload, pair
from backends.python.worker.tensor_memory import ARENA_BYTES, ReceivedTensors, SentTensors

SIZE = 100_000


@pytest.fixture
def ends() -> Iterator[tuple[MessageSocket, MessageSocket]]:
    ours, theirs = (MessageSocket(each) for each in pair())
    theirs.changes_tensors = True
    yield ours, theirs
    for end in (ours, theirs):
        end.close()


def received(end: MessageSocket) -> Payload:
    found = end.receive()
    assert found is not None
    return found[1]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_memory_is_used_again_when_its_last_view_is_gone(ends: tuple[MessageSocket, MessageSocket]) -> None:
    """The sender hears of it by the next message, whatever that is."""
    ours, theirs = ends
    used = []
    for value in range(6):
        ours.send({}, [bytes([value]) * SIZE])
        used.append(set(ours._sent._sent))
        view = received(theirs).read(SIZE)
        assert bytes(view) == bytes([value]) * SIZE
        del view
        theirs.send({})
        received(ours)
        assert not ours._sent.live
    assert len(set(map(frozenset, used))) == 1


def test_memory_is_free_without_another_message(
    ends: tuple[MessageSocket, MessageSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "_TELL_S", 0.001)
    ours, theirs = ends
    for _ in range(2):
        ours.send({}, [bytes(SIZE)])
        received(theirs)
        found = ours.receive()  # waits for it
        assert found is not None and found[0] == {"do": "released"}
        assert not ours._sent.live


def test_memory_that_is_freed_after_the_question_for_it_is_told_too(
    ends: tuple[MessageSocket, MessageSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "_TELL_S", 0.001)
    ours, theirs = ends
    kept: list[Any] = []

    def has_released(received: ReceivedTensors) -> bool:
        found = bool(received._released)
        kept.clear()
        return found

    monkeypatch.setattr(ReceivedTensors, "has_released", property(has_released))
    ours.send({}, [bytes(SIZE)])
    kept.append(received(theirs))
    with ours.duplicate() as readable:
        assert select.select([readable], [], [], 10)[0]
    ours.receive()
    assert not ours._sent.live


def test_memory_in_use_keeps_its_bytes(ends: tuple[MessageSocket, MessageSocket]) -> None:
    ours, theirs = ends
    kept: list[Any] = []
    for value in range(4):
        ours.send({}, [b"-", bytes([value]) * SIZE])
        payload = received(theirs)
        payload.read(1)
        kept.append(payload.read(SIZE)[10:20])
        theirs.send({})
        received(ours)
    assert ours._sent.live == 4
    assert [bytes(view) for view in kept] == [bytes([value]) * 10 for value in range(4)]


def test_a_message_takes_no_descriptor_after_the_first(ends: tuple[MessageSocket, MessageSocket]) -> None:
    ours, theirs = ends
    before = []
    for _ in range(3):
        ours.send({}, [bytes(SIZE)])
        received(theirs).read(SIZE)
        before.append(descriptors())
    assert len(set(before)) == 1


def test_the_process_may_change_what_it_was_sent_and_the_replica_not(
    ends: tuple[MessageSocket, MessageSocket],
) -> None:
    """As Triton's Python models may change their inputs in place."""
    ours, theirs = ends
    ours.send({}, [bytes(SIZE)])
    received(theirs).read(SIZE)[0] = 1
    theirs.send({}, [bytes(SIZE)])
    assert received(ours).read(SIZE).readonly


def test_messages_that_find_no_room_have_memory_of_their_own(
    ends: tuple[MessageSocket, MessageSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_memory, "ARENA_BYTES", 4 * 131072)
    ours, theirs = ends
    payloads = []
    for value in range(7):
        ours.send({}, [bytes([value]) * SIZE])
        payloads.append(received(theirs))
    assert ours._sent.live == 4
    assert [bytes(payload.read(SIZE)) for payload in payloads] == [bytes([v]) * SIZE for v in range(7)]


def test_a_large_message_has_memory_of_its_own(ends: tuple[MessageSocket, MessageSocket]) -> None:
    assert SentTensors().place([bytes(ARENA_BYTES), b"1"], ARENA_BYTES + 64) is None


def test_a_destructor_that_sends_while_its_thread_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = SentTensors()
    within: list[Any] = []
    allocate = sent._allocate

    def collects(nbytes: int) -> memoryview | None:
        within.append(sent.place([bytes(SIZE)], SIZE))
        return allocate(nbytes)

    monkeypatch.setattr(sent, "_allocate", collects)
    assert sent.place([bytes(SIZE)], SIZE) is not None
    assert within == [None]


def test_tensors_are_released_once() -> None:
    sent, found = SentTensors(), ReceivedTensors()
    offset = sent.place([b"x" * SIZE], SIZE)
    assert offset is not None
    descriptor = sent.take_descriptor()
    found.map(descriptor, writable=False)
    os.close(descriptor)
    view = found.view(offset, SIZE)
    with pytest.raises(ValueError, match="was sent twice"):
        found.view(offset, SIZE)
    part = view[5:10]
    del view
    gc.collect()
    assert found.take_released(9) == []
    assert bytes(part) == b"xxxxx"
    del part
    assert found.take_released(9) == [offset] and found.take_released(9) == []
    sent.release([offset])
    with pytest.raises(ValueError, match="not sent"):
        sent.release([offset])


def test_without_descriptors_messages_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> int:
        raise OSError("too many open files")

    sent = SentTensors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuses)
        assert sent.place([b"x" * SIZE], SIZE) is None
    assert sent.place([b"x" * SIZE], SIZE) is not None
    sent.close()


def test_a_second_arena_is_refused() -> None:
    sent, found = SentTensors(), ReceivedTensors()
    sent.place([b"x" * SIZE], SIZE)
    descriptor = sent.take_descriptor()
    try:
        found.map(descriptor, writable=False)
        with pytest.raises(ValueError, match="not expected"):
            found.map(descriptor, writable=False)
    finally:
        os.close(descriptor)
