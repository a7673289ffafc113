import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.config.model_config import TensorSpec
from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.protocol.http.generate import decode_generate, encode_generate, error_event, event, fitted_shape
from tests.costs import bounded
from tests.hints import hint, tritons

INT, ARG = ErrorCode.INTERNAL, ErrorCode.INVALID_ARG


def spec(name: str, datatype: str, *shape: Any) -> Any:
    return TensorSpec(name, datatype, 0, shape, shape)


INPUTS = (
    spec("PROMPT", "BYTES", -1, 1),
    spec("STREAM", "BOOL", 1),
    spec("N", "INT32", -1),
    spec("U", "UINT8", 1),
    spec("F", "FP32", -1),
    spec("PAIRS", "INT64", -1, -1, 2),
    spec("H", "FP16", 1),
)


def decode(document: object, inputs: Any = INPUTS, limit: int = 1 << 20) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_generate("m", "1", body, inputs, limit)


def refusal(document: object, inputs: Any = INPUTS, limit: int = 1 << 20) -> Any:
    with pytest.raises(InferError) as caught:
        decode(document, inputs, limit)
    return caught.value.code, caught.value.message


def test_golden_request() -> None:
    body = (
        b'{"id":"7","N":[1,-1],"PROMPT":"h\xc3\xa9","temperature":0.5,'
        b'"parameters":{"stop":"x","STREAM":true}}'
    )
    assert decode(body) == InferRequest(
        "m",
        "1",
        (
            Tensor("N", "INT32", (2,), b"\1\0\0\0\xff\xff\xff\xff"),
            Tensor("PROMPT", "BYTES", (1, 1), b"\3\0\0\0h\xc3\xa9"),
            Tensor("STREAM", "BOOL", (1,), b"\1"),
        ),
        id="7",
        parameters={"temperature": 0.5, "stop": "x"},
    )


@pytest.mark.parametrize(
    ("shape", "count", "fitted"),
    [
        ((), 1, ()),
        ((1,), 1, (1,)),
        ((-1,), 0, (0,)),
        ((-1, -1), 3, (1, 3)),
        ((-1, 16), 32, (2, 16)),
        ((-1, -1, 2), 6, (1, 3, 2)),
        ((2, -1, 3), 12, (2, 2, 3)),
        ((2, 3), 6, (2, 3)),
    ],
)
def test_shapes(shape: Any, count: int, fitted: Any) -> None:
    assert fitted_shape("I", shape, count) == fitted


@pytest.mark.parametrize(
    ("shape", "count"), [((), 2), ((1,), 2), ((2,), 0), ((-1, 2), 3), ((2, 3), 12), ((0,), 1), ((-1, 0), 1)]
)
def test_shapes_that_do_not_fit(shape: Any, count: int) -> None:
    with pytest.raises(InferError, match="The schema can not convert input 'I' to tensor with proper shape"):
        fitted_shape("I", shape, count)


def test_literals_strings_and_numbers_as_for_infer() -> None:
    request = decode(b'{"F":[NaN,Infinity,-Infinity,1],"U":300,"PROMPT":["\xff"],"big":18446744073709551615}')
    floats, number, text = request.inputs
    np.testing.assert_array_equal(floats.array(), np.array([np.nan, np.inf, -np.inf, 1], np.float32))
    assert (number.data, text.data) == (b"\x2c", b"\1\0\0\0\xff")
    assert request.parameters == {"big": 2.0**64}


def test_scalar_and_array_and_nesting_of_the_same_count() -> None:
    assert decode({"N": 3}) == decode({"N": [3]}) == decode({"N": [[3]]})


def test_an_input_named_id_is_also_the_id() -> None:
    request = decode({"id": "a"}, (spec("id", "BYTES", 1),))
    assert (request.id, request.inputs[0].data) == ("a", b"\1\0\0\0a")


NO_TYPE = "parameter '{}' has invalid type. It should be either 'int', 'bool', or 'string'."
NO_FIT = "The schema can not convert input '{}' to tensor with proper shape"
DEEP = "JSON nesting depth exceeds maximum allowed limit (100)"


@pytest.mark.parametrize(
    ("document", "code", "message"),
    [
        (b"", INT, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"{", INT, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ([], INT, "attempt to get members for non-object"),
        (1, INT, "attempt to get members for non-object"),
        ({"id": 1}, INT, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"parameters": 1}, INT, "Expected JSON object for keyword: 'parameters': attempt to access JSON "
            "non-object as object"),
        ({"parameters": {"n": {"t": 1}}}, ARG, "Converting keyword: 'parameters': " + NO_TYPE.format("n")),
        ({"parameters": {"parameters": {}}}, ARG,
            "Converting keyword: 'parameters': " + NO_TYPE.format("parameters")),
        ({"OTHER": {"a": 1}}, ARG, NO_TYPE.format("OTHER")),
        ({"OTHER": [1]}, ARG, NO_TYPE.format("OTHER")),
        ({"OTHER": None}, ARG, NO_TYPE.format("OTHER")),
        ({"STREAM": [True, False]}, ARG, NO_FIT.format("STREAM")),
        ({"PAIRS": [1, 2, 3]}, ARG, NO_FIT.format("PAIRS")),
        ({"STREAM": "no"}, INT, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        ({"N": 1.5}, INT,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ({"U": -1}, INT,
            "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ({"F": "1"}, INT, "Unable to parse 'data': attempt to access JSON non-number as double"),
        ({"F": {"a": 1}}, INT, "Unable to parse 'data': attempt to access JSON non-number as double"),
        ({"F": None}, INT, "Unable to parse 'data': attempt to access JSON non-number as double"),
        ({"PROMPT": 1}, INT, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ({"PROMPT": {"a": 1}}, INT,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ({"N": [[1, 2], [3, 4]]}, INT,
            "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        ({"H": 1.0}, ARG,
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input H"),
        (b'{"N":1,"x":1,"N":2}', ARG, "input 'N' already exists in request"),
        (b'{"N":1,"parameters":{"N":2}}', ARG,
            "Converting keyword: 'parameters': input 'N' already exists in request"),
        (b'{"x":' + b"[" * 200 + b"]" * 200 + b"}", ARG, DEEP),
        (b'{"N":' + b"[" * 200 + b"]" * 200 + b"}", ARG, DEEP),
        (b'{"x":' + b'{"x":' * 200 + b"1" + b"}" * 201, ARG, DEEP),
        (b'{"x":' + b"[" * 200_000, ARG, DEEP),
        (b'{"\\ud800":1}', INT,
            "failed to parse the request JSON buffer: The surrogate pair in string is invalid. at 2"),
        (b'{"x":1e999}', INT,
            "failed to parse the request JSON buffer: Number too big to be stored in double. at 5"),
    ],
)  # fmt: skip
def test_refusals_have_tritons_texts(document: object, code: ErrorCode, message: str) -> None:
    refused, text = refusal(document)
    assert (refused, tritons(text)) == (code, message)


def test_a_model_that_has_an_input_of_the_keywords_name() -> None:
    assert refusal({"parameters": {}}, (spec("parameters", "INT32", 1),)) == (
        ARG,
        "Keyword 'parameters' for nested schema also given as input tensor name",
    )


def test_sizes_are_limited() -> None:
    assert refusal({"x": "y" * 100}, limit=99)[1] == (
        "request JSON size of 109 bytes exceeds the maximum allowed input size of 99 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    assert "JSON input 'F' has a byte_size (80 bytes) that exceeds" in refusal({"F": [0] * 20}, limit=70)[1]


def a_response(*outputs: Any, **fields: Any) -> Any:
    return InferResponse("model", "3", outputs, **fields)


def test_golden_response() -> None:
    response = a_response(
        Tensor.from_array("TEXT", np.array([b'h\xc3\xa9\n"'], object)),
        Tensor.from_array("B", np.array([[1, 2], [3, 4]], np.int8)),
        Tensor.from_array("a", np.array(0.1, np.float32)),
        Tensor.from_array("none", np.array([], np.float32)),
        Tensor.from_array("truth", np.array([[True]])),
        id="7",
        parameters={"n": 1, "Z": True, "s": "x"},
    )
    document = (
        b'{"B":[1,2,3,4],"TEXT":"h\xc3\xa9\\n\\"","Z":true,"a":0.10000000149011612,"id":"7",'
        b'"model_name":"model","model_version":"3","n":1,"none":[],"s":"x","truth":true}'
    )
    assert encode_generate("", response) == document
    assert event(document) == b"data: " + document + b"\n\n"


def test_literals_and_foreign_bytes_are_printed_as_for_infer() -> None:
    response = a_response(
        Tensor.from_array("F", np.array([np.nan, np.inf, -np.inf], np.float32)),
        Tensor.from_array("N", np.array([np.nan])),
        Tensor.from_array("T", np.array([b"\xff"], object)),
    )
    assert encode_generate("", response) == (
        b'{"F":[NaN,Infinity,-Infinity],"N":NaN,"T":"\xff","model_name":"model","model_version":"3"}'
    )


def test_equal_names_and_the_requests_id() -> None:
    outputs = (Tensor.from_array("id", np.array([1])), Tensor.from_array("p", np.array([2])))
    response = a_response(*outputs, parameters={"p": "first", "model_name": "x"})
    assert (
        encode_generate("r", response) == b'{"id":"r","model_name":"model","model_version":"3","p":"first"}'
    )
    assert b'"id":1' in encode_generate("", response)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (
            a_response(Tensor("H", "FP16", (1,), b"\0\0")),
            "sending FP16 data via JSON is not supported. Please use the binary data format for output",
        ),
        (
            a_response(Tensor("I", "INT32", (2,), b"\0\0")),
            "output tensor shape does not match size of output for 'I'",
        ),
    ],
)
def test_encode_generate_refuses_outputs_that_json_cannot_hold(response: Any, message: str) -> None:
    with pytest.raises(InferError, match="^" + message + "$") as caught:
        encode_generate("", response)
    assert error_event(caught.value.failure) == b'data: {"error":"%b"}\n\n' % message.encode()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text('aé\n"\\\ud800'),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["N", "x", "parameters"]), inner),
    max_leaves=30,
)
KEYS = st.sampled_from([*(entry.name for entry in INPUTS), "id", "parameters", "x", ""])


@given(st.dictionaries(KEYS, VALUES))
def test_any_object_is_decoded_or_refused(document: object) -> None:
    try:
        request = decode(document)
    except InferError:
        return
    for tensor in request.inputs:
        assert tensor.array().shape == tensor.shape
    assert all(isinstance(value, bool | int | float | str) for value in request.parameters.values())


@given(
    st.binary(max_size=200)
    | st.lists(st.sampled_from('{}[],:"1-.eNaIF\\u '), max_size=200).map(
        lambda characters: "".join(characters).encode()
    )
)
def test_any_bytes_are_decoded_or_refused(body: Any) -> None:
    try:
        decode(body)
    except InferError:
        pass


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":' + b"9" * 1_000_000 + b"}",
        b'{"N":[' + b"1," * 500_000 + b"1]}",
        b'{"x":"' + b"\\u0041" * 170_000 + b'"}',
        b'{"x":1' + b',"x":1' * 170_000 + b"}",
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'{"x":' + b"[[],[]," * 140_000,
    ],
    ids=["digits", "array", "escapes", "members", "brackets", "objects", "ragged"],
)
def test_a_megabyte_of_anything_takes_no_long_time(body: Any) -> None:
    with bounded(2.0), suppress(InferError):
        decode(body, limit=8 << 20)


PAIRS = spec("PAIRS", "INT32", -1, 2)
ROWS = TensorSpec("ROWS", "FP32", 4, (4,), (-1, 4))


@pytest.mark.parametrize(
    ("given", "value", "shape"),
    [
        (PAIRS, [[1, 2], [3, 4]], (2, 2)),
        (ROWS, [[1, 2, 3, 4]], (1, 4)),
        (ROWS, [[1, 2, 3, 4], [5, 6, 7, 8]], (2, 4)),
        (ROWS, [1, 2, 3, 4], (1, 4)),
        (spec("WORDS", "BYTES", -1, 2), [["a", "b"]], (1, 2)),
        (TensorSpec("GRID", "FP32", 4, (2, 2), (-1, 2, 2)), [[1, 2], [3, 4]], (1, 2, 2)),
    ],
)
def test_lists_nested_like_the_input_are_taken(given: TensorSpec, value: object, shape: Any) -> None:
    (tensor,) = decode({given.name: value}, (given,)).inputs
    assert tensor.shape == shape


@pytest.mark.parametrize("value", [[[1, 2, 3]], [[1, 2], [3]], [[1, 2], 3], [[[1, 2]]], [[]]])
def test_lists_nested_otherwise_are_refused(value: object) -> None:
    refusal({"PAIRS": value}, (PAIRS,))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"PAIRS": [1, 2, 3]}, "the shape of 'PAIRS' is [-1,2], 3 values given"),
        ({"PAIR": [1, 2]}, "did you mean 'PAIRS'?"),
        ({"text": ["a"]}, "The model's inputs: 'PAIRS'"),
        ({"PAIRS": ["a", "b"]}, "the data of input 'PAIRS' has to be whole numbers"),
    ],
)
def test_refusals_say_what_to_do(document: object, words: str) -> None:
    assert words in hint(refusal(document, (PAIRS,))[1])
