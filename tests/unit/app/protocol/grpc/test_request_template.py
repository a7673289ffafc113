"""Requests read by the plan of one like them: the same as by protobuf, whatever comes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest
from app.protocol.grpc import request_template
from app.protocol.grpc.request_splitter import cut_request
from app.protocol.grpc.request_template import read_infer
from app.protocol.grpc.v2 import decode_infer


def message(raw: tuple[bytes, ...] = (b"1234",), **fields: Any) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="m", raw_input_contents=raw, **fields)
    for i, piece in enumerate(raw):
        made.inputs.add(name=f"I{i}", datatype="UINT8", shape=[len(piece)])
    return made


def plain(request: InferRequest) -> InferRequest:
    """With its data as bytes, which compare."""
    inputs = [type(t)(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs]
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return InferRequest(**(fields | {"inputs": tuple(inputs)}))


texts = st.text(max_size=200)


@given(
    st.lists(st.binary(max_size=300) | st.integers(4000, 5000).map(bytes), max_size=3),
    texts,
    texts,
    st.lists(texts, max_size=2),
    st.dictionaries(st.sampled_from(["a", "priority", "timeout", "sequence_id"]), st.integers(0, 9)),
)
def test_equals_what_protobuf_reads(
    raw: list[bytes], identifier: str, version: str, outputs: list[str], parameters: dict[str, int]
) -> None:
    sent = message(tuple(raw), id=identifier, model_version=version)
    for name in outputs:
        sent.outputs.add(name=name)
    for name, value in parameters.items():
        sent.parameters[name].int64_param = value
    for _ in range(2):  # the second time by plan
        assert plain(read_infer(sent.SerializeToString(), 2.5)) == decode_infer(sent, deadline=2.5)


def test_what_is_alike_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read_infer(message(model_version="77", id="first").SerializeToString())
    monkeypatch.setattr(request_template, "decode_infer", None)
    request = read_infer(message((b"abcd",), model_version="77", id="ö").SerializeToString(), 1.0)
    assert (request.id, request.inputs[0].data, request.deadline) == ("ö", b"abcd", 1.0)


def test_large_contents_are_views() -> None:
    data = message((bytes(100_000),)).SerializeToString()
    for _ in range(2):
        assert read_infer(data).inputs[0].data.obj is data


def test_a_request_like_another_that_lacks_its_contents() -> None:
    read_infer(message().SerializeToString())
    lacking = message()
    del lacking.raw_input_contents[:]
    with pytest.raises(InferError, match="unable to find data for input tensor 'I0'"):
        read_infer(lacking.SerializeToString())


@pytest.mark.parametrize(("field", "value"), [("bytes_contents", b"x"), ("int_contents", 7)])
def test_requests_with_contents_of_their_own_are_not_remembered(field: str, value: Any) -> None:
    for number in (1, 2):
        sent = pb.ModelInferRequest(model_name="m")
        tensor = sent.inputs.add(
            name="I", datatype="BYTES" if field == "bytes_contents" else "INT32", shape=[1]
        )
        getattr(tensor.contents, field).append(value * number)
        assert read_infer(sent.SerializeToString()) == decode_infer(sent)
        cut = cut_request(sent.SerializeToString())
        assert cut is not None and request_template._plans.get(cut.header) is None


def test_fields_of_later_versions_and_those_given_twice() -> None:
    sent = message(id="a")
    more = b"\x82\x7d\x03new" + pb.ModelInferRequest(id="b").SerializeToString()
    request = read_infer(sent.SerializeToString() + more)
    assert (request.id, request.inputs[0].data) == ("b", b"1234")
    request = read_infer(sent.SerializeToString() + pb.ModelInferRequest(id="b").SerializeToString())
    assert (request.id, request.inputs[0].data) == ("b", b"1234")


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x3a\x05abc", b"\x1a\x02\xff\xfe", b"\x3a" + b"\xff" * 9, b"\x0a\x01\xff"]
)
def test_what_is_no_request(data: bytes) -> None:
    with pytest.raises(InferError) as caught:
        read_infer(data)
    assert (caught.value.code, caught.value.message) == (
        ErrorCode.INTERNAL,
        "failed to parse the request message",
    )


@given(st.binary(max_size=60))
def test_fuzz(data: bytes) -> None:
    try:
        expected: Any = decode_infer(pb.ModelInferRequest.FromString(data))
    except Exception:
        with pytest.raises(InferError):
            read_infer(data)
    else:
        assert plain(read_infer(data)) == expected
