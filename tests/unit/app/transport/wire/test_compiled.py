"""The compiled messages beside Python's: the same bytes, the same values, or nothing."""

import gc
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire.compiled import compiled_messages
from app.transport.wire.frames import FINAL, HEADER_SIZE, Frame, Kind
from app.transport.wire.messages import (
    FrameEncoder,
    _WireRequest,
    _WireResponse,
    decode_request,
    decode_response,
)
from app.transport.wire.tensors import IN_META, MAX_TENSORS
from tests.unit.app.transport.wire.test_messages import requests, tensors

extension = pytest.importorskip("app.native.extension")

SETTINGS = TransportSettings(data_plane="native")
messages: Any = compiled_messages(SETTINGS)
python = FrameEncoder(TransportSettings(data_plane="python"), None)

TENSOR = Tensor("I", "FP32", (1, 70_000), b"\0\0\x80?")
REQUEST = InferRequest("model", "", (TENSOR,), (RequestedOutput("O"),), "id")
PLACE = RegionSlice("r", 2**40, 4, "/key", 7, b"handle", 1)
SHARED = InferRequest(
    "model",
    "",
    (TENSOR, Tensor("J", "FP32", (1,), PLACE)),
    (RequestedOutput("O"), RequestedOutput("P", region=RegionSlice("p" * 300, 0, 4))),
    "id",
    regions=True,
)
STEP = msgspec.structs.replace(REQUEST, chain=("outer", "e" * 40))
RESPONSE = InferResponse("model", "1", (TENSOR,), "id", final=False)

responses = st.builds(
    InferResponse,
    st.text(max_size=40),
    st.text(max_size=3),
    st.lists(tensors, max_size=4).map(tuple),
    st.text(max_size=300),
    st.just({}),
    st.booleans(),
)


def meta_of(message: InferRequest | InferResponse) -> bytes:
    """Return the meta that Python writes."""
    queue: list[Any] = []
    if isinstance(message, InferRequest):
        python.request(queue, 1, message, 0)
    else:
        python.response(queue, 1, message)
    return b"".join(queue)[HEADER_SIZE:]


@given(requests, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_requests_are_written_as_by_python(request: InferRequest, stream: int, left_us: int) -> None:
    queue: list[Any] = []
    python.request(queue, stream, request, left_us)
    assert messages.write_request(request, stream, left_us) in (None, b"".join(queue))


@given(responses, st.integers(0, 2**64 - 1))
def test_responses_are_written_as_by_python(response: InferResponse, stream: int) -> None:
    queue: list[Any] = []
    python.response(queue, stream, response)
    assert messages.write_response(response, stream) in (None, b"".join(queue))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 127, 128, 255, 256, IN_META])
def test_sizes_at_every_bound_of_the_encoding(size: int) -> None:
    dimensions = (0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1)
    sent = (Tensor("n" * min(size, 300), "UINT8", dimensions, bytes(size)), *[TENSOR] * min(size, 20))
    request = InferRequest(
        "é" * (min(size, 600) // 2), "", sent, tuple([RequestedOutput("O")] * min(size, 20))
    )
    queue: list[Any] = []
    python.request(queue, 7, request, 5)
    assert messages.write_request(request, 7, 5) == b"".join(queue)
    assert messages.read_request(meta_of(request), 2.5) == msgspec.structs.replace(request, deadline=2.5)
    response = InferResponse("m", "1", sent, "i" * min(size, 600))
    assert messages.read_response(meta_of(response), True) == response


def test_ordinary_messages_are_not_left_to_python() -> None:
    written = messages.write_request(REQUEST, 1, 0)
    assert messages.read_request(written[HEADER_SIZE:], 1.5) == msgspec.structs.replace(REQUEST, deadline=1.5)
    for request in (SHARED, STEP, msgspec.structs.replace(SHARED, chain=("m",) * 20)):
        queue: list[Any] = []
        python.request(queue, 1, request, 0)
        assert messages.write_request(request, 1, 0) == b"".join(queue)
        assert messages.read_request(meta_of(request), 1.5) == msgspec.structs.replace(request, deadline=1.5)
    written = messages.write_response(RESPONSE, 1)
    assert messages.read_response(memoryview(written)[HEADER_SIZE:], False) == RESPONSE


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"p": 1}},
        {"sequence_id": 1},
        {"sequence_id": "s"},
        {"sequence_end": True},
        {"priority": 1},
        {"timeout_us": 1},
        {"trace": "-"},
        {"regions": True, "trace": "-"},
        {"regions": True, "mirrored": True},
        {"chain": ("m",), "trace": "-"},
        {"chain": ["m"]},
        {"chain": (1,)},
        {"chain": ("\ud800",)},
        {"mirrored": True},
        {"id": "\ud800"},
        {"id": b"bytes"},
        {"inputs": [TENSOR]},
        {"inputs": (REQUEST,)},
        {"inputs": (Tensor("I", "FP32", (-1,), b""),)},
        {"inputs": (Tensor("I", "FP32", (True,), b""),)},
        {"inputs": (Tensor("I", "FP32", (2**63,), b""),)},
        {"inputs": (Tensor("I", "FP32", (1,), bytes(IN_META + 1)),)},
        {"inputs": (Tensor("I", "FP32", (1,), memoryview(b"abcd")[::2]),)},
        {"inputs": (Tensor("I", "FP32", (1,), RegionSlice("\ud800", 0, 4)),)},
        {"outputs": (REQUEST,)},
        {"inputs": (Tensor("I", "FP32", (1,), bytes(IN_META)),) * 3},
        {"outputs": (RequestedOutput("O"),) * (MAX_TENSORS + 1)},
    ],
)
def test_other_requests_are_left_to_python(change: dict[str, Any]) -> None:
    assert messages.write_request(msgspec.structs.replace(REQUEST, **change), 1, 0) is None


def test_metas_beyond_the_limit_are_left_to_python() -> None:
    small: Any = compiled_messages(TransportSettings(max_meta_bytes=len(meta_of(REQUEST)) - 1))
    assert small.write_request(REQUEST, 1, 0) is None
    assert small.read_request(meta_of(REQUEST), 0.0) is not None


def read(meta: bytes, python_reads: Any) -> Any:
    """Return what Python reads; None for what it refuses."""
    try:
        return python_reads(meta)
    except ProtocolError:
        return None


def check_reading(meta: bytes) -> bool:
    """Compare both readers, and return whether the compiled one took it for a message."""
    frame = Frame(Kind.INFER, FINAL, 1, 0, memoryview(meta), memoryview(b""), False)
    request, response = messages.read_request(meta, 1.5), messages.read_response(meta, True)
    assert request is None or request == decode_request(frame, 1.5, None)
    assert response is None or response == decode_response(frame, None)
    return request is not None or response is not None


@given(st.binary(max_size=100))
@example(b"")
@example(b"\x95\xa1m\xa0\xdc\xff\xff\x90\xa0")
@example(b"\x95\xa1m\xa0\xdd\xff\xff\xff\xff\x90\xa0")
@example(b"\x95\xdb\xff\xff\xff\xff\xa0\x90\x90\xa0")
@example(b"\x95\xa1\xff\xa0\x90\x90\xa0")
@example(b"\x95\xa1m\xa0\x90\x90\xa0\xa0")
@example(b"\x95\xa1m\xa0\x91\x94\xa0\xa0\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc4\x00\x90\xa0")
@example(b"\x95\xa1m\xa0\x91\x94\xa0\xa0\x91\xff\xc4\x00\x90\xa0")
def test_any_meta_is_read_as_by_python_or_left_to_it(meta: bytes) -> None:
    check_reading(meta)


@given(st.one_of(requests, responses, st.sampled_from([SHARED, STEP])), st.data())
def test_changed_metas_are_read_as_by_python_or_left_to_it(message: Any, data: st.DataObject) -> None:
    meta = bytearray(meta_of(message))
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(meta)))
        stop = start + data.draw(st.integers(0, 3))
        meta[start:stop] = data.draw(st.binary(max_size=3))
    check_reading(bytes(meta))


def test_what_python_wrote_is_read() -> None:
    assert check_reading(meta_of(REQUEST))
    assert check_reading(meta_of(RESPONSE))


def test_each_response_has_parameters_of_its_own() -> None:
    first, second = (messages.read_response(meta_of(RESPONSE), True) for _ in range(2))
    assert first.parameters is not second.parameters


def test_malformed_metas_leave_nothing_behind() -> None:
    written = [meta_of(message) for message in (REQUEST, SHARED, STEP, RESPONSE)]
    metas = [meta[:n] for meta in written for n in range(len(meta) + 1)]
    metas += [meta + b"\0" for meta in written]

    def run() -> None:
        for meta in metas:
            messages.read_request(meta, 1.5)
            messages.read_response(meta, True)
        messages.write_request(REQUEST, 1, 0)
        messages.write_request(SHARED, 1, 0)
        messages.write_request(STEP, 1, 0)
        messages.write_request(msgspec.structs.replace(REQUEST, id="\ud800"), 1, 0)
        messages.write_request(msgspec.structs.replace(SHARED, id="\ud800"), 1, 0)
        messages.write_response(RESPONSE, 1)

    for _ in range(3):
        run()
    gc.collect()
    blocks, references = sys.getallocatedblocks(), sys.getrefcount(Tensor)
    for _ in range(200):
        run()
    assert sys.getallocatedblocks() - blocks < 100
    assert sys.getrefcount(Tensor) == references


def test_arguments_are_checked() -> None:
    for call in (messages.write_request, messages.write_response, messages.read_request):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        messages.read_request("text", 0.0)
    assert messages.write_request(RESPONSE, 1, 0) is None
    assert messages.write_request(REQUEST, -1, 0) is None
    assert messages.write_response(REQUEST, "1") is None


def test_types_with_other_fields_are_refused() -> None:
    types = (Tensor, RequestedOutput, InferRequest, InferResponse, RegionSlice, print, print)
    limits = (1, 1, 1, 1)
    with pytest.raises(TypeError):
        extension.Messages(int, int, int, int, int, print, print, (), (), *limits)
    with pytest.raises(TypeError, match="has no slot 'name'"):
        extension.Messages(type("Plain", (), {"name": ""}), *types[1:], (), (), *limits)
    with pytest.raises(TypeError):
        extension.Messages(1, 2, 3, 4, 5, print, print, (), (), *limits)
    with pytest.raises(TypeError, match="unknown"):
        extension.Messages(*types, ("unknown",), (), *limits)
    with pytest.raises(TypeError):
        extension.Messages(*types, (1,), (), *limits)
    with pytest.raises(ValueError, match="too many"):
        extension.Messages(*types, ("id",) * 33, (), *limits)


def test_every_field_of_the_metas_is_known() -> None:
    """A field that was added would be lost otherwise."""
    assert Tensor.__struct_fields__ == ("name", "datatype", "shape", "data")
    assert _WireRequest.__struct_fields__[:5] == InferRequest.__struct_fields__[:5]
    assert set(_WireRequest.__struct_fields__[5:]) == set(InferRequest.__struct_fields__[5:]) - {
        "deadline",
        "rollout",
    }
    assert {*_WireResponse.__struct_fields__, "final"} == set(InferResponse.__struct_fields__)
