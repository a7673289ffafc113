"""Batches and their outcomes as messages that come again."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from app.core.errors import not_found
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor, failed
from backends.base import Request
from backends.python.worker import batch_codec, framing
from backends.python.worker.batch_codec import (
    DETACHED,
    RESCHEDULED,
    Encoded,
    Outcome,
    Texts,
    encode_batch,
    encode_outcome,
    read_batch,
    read_outcome,
)
from backends.python.worker.framing import MessageSocket, Payload, pair

X = Tensor("x", "FP32", (2,), b"12345678")
NAMES = Tensor("names", "BYTES", (1,), b"\3\0\0\0abc")
PLAIN = InferRequest("m", "1", (X,))
REQUESTS = [
    PLAIN,
    InferRequest("m", "", (X, NAMES), (RequestedOutput("y"),), id="ä-1", deadline=123456.789, chain=("a",)),
    InferRequest("m", "", (), parameters={"a": 1.5}, priority=2, timeout_us=5, trace="-"),
    InferRequest("m", "", (X,), sequence_id="s", sequence_start=True, sequence_end=True),
    InferRequest("m", "", (X,), sequence_id=2**63 - 1),
    InferRequest("m", "", (X,), deadline=9e12),
]


def batch(*requests: InferRequest) -> dict[int, Request]:
    return {
        number: Request(infer, lambda response: None, lambda: False)
        for number, infer in enumerate(requests, 2**40)
    }


def sent(message: Encoded) -> tuple[dict[str, Any], Payload]:
    """Return what the other end has of a message."""
    ours, theirs = (MessageSocket(each) for each in pair())
    ours.send_encoded(*message)
    received = theirs.receive()
    assert received is not None
    for end in (ours, theirs):
        end.close()
    return received


@pytest.mark.parametrize("requests", [[each] for each in REQUESTS] + [REQUESTS, REQUESTS[::-1], [PLAIN] * 3])
def test_batches_round_trip(requests: Sequence[InferRequest]) -> None:
    texts = Texts()
    for _ in range(2):  # made, then known
        message, payload = sent(encode_batch(batch(*requests), texts))
        assert message["do"] == "execute"
        found = read_batch(message["requests"], payload)
        assert [number for number, _ in found] == list(range(2**40, 2**40 + len(requests)))
        assert [infer for _, infer in found] == list(requests)


RESPONSES = [
    InferResponse("m", "1", (X,), "ä-1"),
    InferResponse("m", "1", (X, NAMES), "ä-1", {"p": "v"}, final=False),
    InferResponse("m", "1", (), "another"),
    failed(not_found("nobody"), "ä-1"),
]


@pytest.mark.parametrize("responses", [[], *([each] for each in RESPONSES), RESPONSES])
def test_outcomes_round_trip(responses: Sequence[InferResponse]) -> None:
    ids, texts = {7: "ä-1", 2**40: ""}, Texts()
    outcome = Outcome(1, 2**60, [DETACHED, RESCHEDULED], [(7, each) for each in responses])
    for _ in range(2):
        message, payload = sent(encode_outcome(outcome, ids, texts))
        assert read_outcome(message["value"], payload, ids) == outcome


def test_an_ordinary_batch_is_encoded_and_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that differ in ids, deadlines and bytes agree in the rest."""
    texts, (ours, theirs) = Texts(), (MessageSocket(each) for each in pair())
    messages = []
    for index in range(3):
        infer = InferRequest(
            "m", "", (NAMES, Tensor("t", "BYTES", (1,), b"x" * index)), id=str(index), deadline=index
        )
        ours.send_encoded(*encode_batch(batch(infer, infer), texts))
        received = theirs.receive()
        assert received is not None
        messages.append(received[0])
        assert [each.id for _, each in read_batch(received[0]["requests"], received[1])] == [str(index)] * 2
        monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("decoded again"))
        monkeypatch.setattr(batch_codec, "encoded", lambda *_: pytest.fail("encoded again"))
    assert messages[0] is messages[1] is messages[2]
    for end in (ours, theirs):
        end.close()


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_codec, "_MAX_TEXTS", 4)
    monkeypatch.setattr(framing, "_MAX_KNOWN", 4)
    texts, (ours, theirs) = Texts(), (MessageSocket(each) for each in pair())
    for index in range(20):
        ours.send_encoded(*encode_batch(batch(InferRequest(f"m{index}", "", ())), texts))
        assert theirs.receive() is not None
        assert len(texts._texts) <= 4 and len(theirs._known) <= 4
    for end in (ours, theirs):
        end.close()


def test_a_deadline_after_the_longest_timeout_is_as_good_as_the_latest() -> None:
    endless = InferRequest("m", "", (X,), deadline=2**64 / 1e6)
    message, payload = sent(encode_batch(batch(endless), Texts()))
    ((_, read),) = read_batch(message["requests"], payload)
    assert read.deadline == 9e12
