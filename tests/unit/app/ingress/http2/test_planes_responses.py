"""Responses to unary calls, by C beside Python: the same bytes."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tritonclient.grpc import service_pb2 as pb

from app.ingress.grpc import front
from app.native.choice import missing
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.framing import PREFIX
from app.protocol.grpc.responses import encode_infer
from tests.unit.app.ingress.http2.planes import BLOCK, BLOCKS, RESPONSE, Pair, call, message, tensors

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("compiled", "change"),
    [
        (True, {}),
        (True, {"model_version": ""}),
        (True, {"outputs": ()}),
        (True, {"outputs": tensors((), (0,), (127, 128, 2**31), (2**63 - 1,))}),
        (True, {"outputs": tensors((1,), data=memoryview(bytearray(9000)), name="é" * 200)}),
        (True, {"outputs": tensors((1,), data=b"")}),
        (True, {"outputs": tensors((1,), data=bytes(16384))}),
        (True, {"outputs": tensors((1,), data=memoryview(bytes(range(256)) * 200))}),
        (True, {"outputs": tensors((1,), (2,), (3,), data=bytes(range(256)) * 80)}),
        (True, {"outputs": tensors((1,), data=bytes(8191)) + tensors((1,), data=bytes(8192)) * 3}),
        (False, {"outputs": tensors((1,), data=bytes(65536))}),
        (False, {"outputs": tensors((1,), data=bytes(9000), name="n" * 2000)}),
        (False, {"outputs": tensors((1,), name="n" * 2000)}),
        (False, {"outputs": tensors(*[(1,)] * 17)}),
        (True, {"parameters": {"a": 1}}),
        (True, {"parameters": {"é": 2**63 - 1}}),
        (True, {"parameters": {"a": -1}}),
        (True, {"parameters": {"a": False}}),
        (True, {"parameters": {"a": True}}),
        (False, {"parameters": {"a": "text"}}),
        (False, {"parameters": {"a": 0.5}}),
        (False, {"parameters": {"a" * 250: 1}}),
        (False, {"model_name": "\ud800"}),
        (False, {"outputs": tensors((-1,))}),
    ],
)
def test_responses(
    pair: Pair, compiled: bool, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    response = msgspec.structs.replace(RESPONSE, **change)
    pair.receive(call(101, message(), BLOCK))
    python, native = (side.service.waiting.pop()[0] for side in pair.sides)
    python(response)
    encoded: list[object] = []

    def encode(*given: Any) -> Any:
        encoded.append(given)
        return encode_infer(*given)

    monkeypatch.setattr(front, "encode_infer", encode)
    native(response)
    assert compiled is not bool(encoded)
    for side in pair.sides:
        side.loop.run_ready()
    pair.compare()


def test_responses_with_several_parameters() -> None:
    """Protobuf orders them as it likes, so they are compared as a client reads them."""
    parameters = {"sequence_id": 7, "sequence_start": False, "sequence_end": True}
    read = []
    for side in Pair().sides:
        side.receive(call(101, message(), BLOCK))
        side.service.waiting.pop()[0](msgspec.structs.replace(RESPONSE, parameters=parameters))
        side.loop.run_ready()
        sent = h2.FrameReader(1 << 24).feed(bytes(side.transport.written))
        data = [frame.payload for frame in sent if isinstance(frame, h2.Frame) and frame.kind == h2.DATA]
        read.append(pb.ModelInferResponse.FromString(bytes(data[-1][PREFIX.size :])))
        side.close()
    assert read[0] == read[1]
    assert read[0].parameters["sequence_id"].int64_param == 7


def test_responses_of_calls_that_are_over(pair: Pair) -> None:
    pair.receive(call(101, message(), BLOCK) + call(103, message(), BLOCKS[1]) + h2.rst_stream(101, 8))
    for side in pair.sides:
        side.loop.timers[-1].expire()
    while pair.sides[1].service.waiting:
        pair.answer()
        pair.compare()


def test_responses_wait_for_windows(pair: Pair) -> None:
    pair.receive(h2.settings_frame({4: 50}) + call(101, message(), BLOCK) + call(103, message(), BLOCK))
    while pair.sides[1].service.waiting:
        pair.answer()
        pair.compare()
    for number in (101, 103):
        pair.receive(h2.window_update(number, 1))
        pair.receive(h2.window_update(number, 1000))
        pair.compare()
