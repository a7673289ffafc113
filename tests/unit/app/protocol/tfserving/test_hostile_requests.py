"""Requests of TensorFlow Serving whose numbers, lists and names promise more than their bytes."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest
from app.protocol.tfserving import examples, grpc, rest
from app.protocol.tfserving.messages import NUMBERS, message_class
from app.protocol.tfserving.signature import Signature, signature_of
from tests.costs import bounded

LIMIT = 1 << 20
MEMORY = 64 << 20
SECONDS = 1.0
"""For 64 KiB, which take 0.1 s at most where memory is not measured."""


def signature(data_type: str, dims: str = "-1", name: str = "I") -> Signature:
    text = f'name: "m" input {{ name: "{name}" data_type: TYPE_{data_type} dims: [ {dims} ] }}'
    outputs = 'output { name: "outputs" data_type: TYPE_FP32 dims: [ 1 ] }'
    return signature_of(text_format.Parse(text + outputs, mc.ModelConfig()))


STRINGS, NUMBERS_2D, EXAMPLES = (
    signature("STRING"),
    signature("FP32", "-1, -1"),
    signature("STRING", "-1", "inputs"),
)


def refused(read: Callable[..., object], *arguments: Any) -> str:
    with bounded(SECONDS, MEMORY), pytest.raises(InferError) as caught:
        read(*arguments)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def predict(given: Signature, shape: list[int], dtype: str, **values: Any) -> InferRequest:
    message = grpc.PredictRequest()
    tensor = message.inputs[next(iter(given.inputs))]
    tensor.dtype = NUMBERS[dtype]
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    for name, value in values.items():
        getattr(tensor, name).extend(value)
    parsed = grpc.PredictRequest.FromString(message.SerializeToString())
    return grpc.decode_predict(parsed, 1, given, 0.0)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        ([1, 1 << 23], b""),
        ([1, 1 << 23], b"a" * 1024),
        ([1 << 62], b""),
        ([1 << 40, 1 << 40], b""),
        ([1] * 65, b""),
        ([1] * 20_000, b""),
        ([1 << 62] * 5000, b""),
        ([0, 1 << 62], b""),
        ([-1], b""),
    ],
)
def test_a_string_does_not_stand_for_any_number(shape: list[int], value: bytes) -> None:
    text = refused(lambda: predict(STRINGS, shape, "DT_STRING", string_val=[value]))
    assert "which does not fit its shape" in text or "has no valid shape" in text
    text = refused(lambda: predict(NUMBERS_2D, shape, "DT_FLOAT", float_val=[1.0]))
    assert "which does not fit its shape" in text or "has no valid shape" in text


def test_a_string_of_nothing_takes_time_too() -> None:
    refused(lambda: predict(STRINGS, [1 << 22], "DT_STRING", string_val=[b""]))
    assert (
        len(predict(STRINGS, [1 << 22], "DT_STRING", string_val=[b""] * (1 << 22)).inputs[0].data) == 4 << 22
    )


def test_the_last_value_stands_for_the_rest() -> None:
    with bounded(SECONDS, MEMORY):
        (tensor,) = predict(STRINGS, [1 << 17], "DT_STRING", string_val=[b"a", b"bc"]).inputs
        assert (tensor.shape, len(tensor.data)) == ((1 << 17,), 5 + 6 * ((1 << 17) - 1))
        (tensor,) = predict(NUMBERS_2D, [2, 1 << 20], "DT_FLOAT", float_val=[1.5, 2.5]).inputs
        assert tensor.array().sum() == 1.5 + 2.5 * ((1 << 21) - 1)
        (tensor,) = predict(NUMBERS_2D, [2, 3], "DT_FLOAT").inputs
        assert bytes(tensor.data) == bytes(24)


def test_outputs_that_are_asked_for_are_limited() -> None:
    message = grpc.PredictRequest()
    message.inputs["I"].dtype = NUMBERS["DT_STRING"]
    message.output_filter.extend(["a"] * 20_000)
    assert "at most 4096" in refused(grpc.decode_predict, message, 1, STRINGS, 0.0)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([0] * 10_000 + ["a" * 20_000], "is not of expected type: float32"),
        ([[0] * 5000, ["a" * 20_000] * 5 + [0] * 4995], "is not of expected type: float32"),
        ([True, 1], "is not of expected type: float32"),
        ([10**400], "is not of expected type: float32"),
        ([None], "is not of expected type: float32"),
        ([{"b64": "YQ=="}], "is not of expected type: float32"),
        ([[1], 1], "unexpected size"),
        ([[1], [1, 2]], "unexpected size"),
        ([[]] * 10_000 + [[[]]], "unexpected size"),
        (nested(65), "unexpected level"),
        (nested(500), "unexpected level"),
    ],
)
def test_numbers_are_read_in_proportion(value: Any, text: str) -> None:
    body = json.dumps({"inputs": {"I": value}}).encode()
    assert text in refused(rest.decode_predict, "m", "1", body, NUMBERS_2D, LIMIT)


@pytest.mark.parametrize(
    ("value", "shape"),
    [([], (0,)), ([[]] * 3, (3, 0)), (1, ()), ([[1, 2.5]], (1, 2)), (nested(64), (1,) * 63 + (0,))],
)
def test_shapes_of_lists(value: Any, shape: tuple[int, ...]) -> None:
    for given, leaf in ((NUMBERS_2D, value), (STRINGS, json.loads(json.dumps(value).replace("1", '"a"')))):
        body = json.dumps({"inputs": {"I": leaf}}).encode()
        if given is NUMBERS_2D or "2.5" not in body.decode():
            (tensor,) = rest.decode_predict("m", "1", body, given, LIMIT).request.inputs
            assert tensor.shape == shape


def with_context(context: bytes, count: int) -> Any:
    given = message_class("Input")()
    given.example_list_with_context.context = context
    given.example_list_with_context.examples.extend([b""] * count)
    return given


def test_a_context_is_not_copied_without_limit() -> None:
    assert "which exceeds the maximum" in refused(
        examples.input_examples, with_context(bytes(32 << 10), 16_000)
    )
    body = json.dumps({"context": {"c": "a" * 32_000}, "examples": [{}] * 8_000}).encode()
    assert "which exceeds the maximum" in refused(examples.decode_examples, body, EXAMPLES, LIMIT)
    with bounded(SECONDS, MEMORY):
        assert len(examples.input_examples(with_context(bytes(1 << 10), 16_000))) == 16_000


@pytest.mark.parametrize("name", ["\\ud800", "\\udc00", "a\\ud83d"])
def test_a_name_that_is_no_text_is_refused(name: str) -> None:
    body = b'{"examples": [{"%b": 1}]}' % name.encode()
    text = refused(examples.decode_examples, body, EXAMPLES, LIMIT)
    assert text == "JSON Parse error: The surrogate pair in string is invalid."
