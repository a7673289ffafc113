"""HTTP infer requests that are refused, in Triton's words."""

import json
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.protocol.http import json_part
from app.protocol.http.v2 import decode_infer, parse_header_length
from tests.hints import hint, tritons
from tests.unit.app.protocol.http.http_documents import ARG, INT, an_input, decode, one_output, refusal

NO_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)
UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


def with_parameters(**parameters: Any) -> Any:
    return {"inputs": [], "parameters": parameters}


RESERVED = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
UNUSABLE = [
    ("sequence_id", INT, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
    (
        "sequence_start",
        INT,
        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
    ),
    ("sequence_end", INT, "Unable to parse 'sequence_end': attempt to access JSON non-boolean as boolean"),
    (
        "binary_data_output",
        INT,
        "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
    ),
    ("priority", INT, f"Unable to parse 'priority': {UNSIGNED}"),
    ("timeout", INT, f"Unable to parse 'timeout': {UNSIGNED}"),
    ("triton_mine", ARG, RESERVED),
    ("mine", ARG, "parameter 'mine' has invalid type. It should be either 'int', 'bool', or 'string'."),
]


@pytest.mark.parametrize(("key", "code", "message"), UNUSABLE)
@pytest.mark.parametrize("value", [None, [], {}])
def test_parameters_of_an_unsupported_type_are_refused(
    key: str, code: ErrorCode, message: str, value: object
) -> None:
    assert refusal({"inputs": [an_input(data=[1, 2])], "parameters": {key: value}}) == (code, message)


def test_an_empty_shape_is_for_the_model_to_refuse() -> None:
    (tensor,) = decode_infer(
        "m", "", json.dumps({"inputs": [an_input(shape=[], data=[1, 2])]}).encode()
    ).request.inputs
    assert (tensor.shape, tensor.data) == ((), b"")


REFUSALS = [
    (b"", INT, "failed to parse the request JSON buffer: The document is empty. at 0"),
    (
        b"[1",
        INT,
        "failed to parse the request JSON buffer: Missing a comma or ']' after an array element. at 2",
    ),
    (b"{]", INT, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    (b"nul", INT, "failed to parse the request JSON buffer: Invalid value. at 3"),
    (
        b"{} x",
        INT,
        "failed to parse the request JSON buffer: The document root must not be followed by "
        "other values. at 3",
    ),
    (b"[]", INT, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ({}, INT, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ({"inputs": 3}, INT, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    (
        {"inputs": [], "outputs": 3},
        INT,
        "Unable to parse 'outputs': attempt to access JSON non-array as array",
    ),
    ({"id": 3, "inputs": []}, INT, "Unable to parse 'id': attempt to access JSON non-string as string"),
    ({"inputs": [3]}, ARG, f"{NO_SOURCE} no field is set"),
    ({"inputs": [an_input()]}, ARG, f"{NO_SOURCE} no field is set"),
    (
        {"inputs": [an_input(data=[1, 2], parameters={"binary_data_size": 8})]},
        ARG,
        f"{NO_SOURCE} set 'data' 'binary_data_size'",
    ),
    (
        {"inputs": [{"shape": [1], "datatype": "INT32", "data": [1]}]},
        INT,
        "Unable to parse 'name': attempt to access non-existing object member 'name'",
    ),
    (
        {"inputs": [an_input(name=3, data=[1])]},
        INT,
        "Unable to parse 'name': attempt to access JSON non-string as string",
    ),
    ({"inputs": [an_input(shape=[2, -5], data=[1])]}, INT, f"Unable to parse 'shape': {UNSIGNED}"),
    ({"inputs": [an_input(shape=[1.5], data=[1])]}, INT, f"Unable to parse 'shape': {UNSIGNED}"),
    ({"inputs": [an_input(shape=[1 << 64], data=[1])]}, INT, f"Unable to parse 'shape': {UNSIGNED}"),
    (
        {"inputs": [an_input(shape=[(1 << 64) - 1], data=[1])]},
        ARG,
        "invalid shape for input 'I': shape [-1] contains one or more invalid dimensions",
    ),
    (
        {"inputs": [an_input(shape=[16, (1 << 60) + 2], data=[1])]},
        ARG,
        "invalid shape for input 'I': shape [16,1152921504606846978] causes total element count to exceed "
        "maximum size of 9223372036854775807",
    ),
    (
        {"inputs": [an_input(shape=[4, (1 << 60) + 2], datatype="FP32", data=[1.0])]},
        ARG,
        f"byte size overflow for input 'I': {4 * ((1 << 60) + 2)} elements of 4 bytes exceed the maximum "
        "size of 9223372036854775807",
    ),
    ({"inputs": [an_input(datatype="INT33", data=[1, 2])]}, ARG, "invalid datatype for input I"),
    (
        {"inputs": [an_input(datatype="FP16", data=[1, 2])]},
        ARG,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for input I",
    ),
    (
        {"inputs": [an_input(datatype="BF16", data=[1, 2])]},
        ARG,
        "receiving BF16 data via JSON is not supported. Please use the binary data format for input I",
    ),
    (
        {"inputs": [an_input(data=3)]},
        INT,
        "Unable to parse 'data': attempt to access JSON non-array as array",
    ),
    (
        {"inputs": [an_input(data=[1, 2, 3])]},
        INT,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    (
        {"inputs": [an_input(data=[1])]},
        INT,
        "Failed to parse 'data' field: shape does not match true shape",
    ),
    (
        {"inputs": [an_input(data=[1, 2], datatype="BYTES")]},
        INT,
        "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    (
        {"inputs": [an_input(data=[1, 0], datatype="BOOL")]},
        INT,
        "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    ),
    (
        {"inputs": [an_input(data=[1.5, 2])]},
        INT,
        "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    ),
    (
        {"inputs": [an_input(data=[1 << 63, 2], datatype="INT64")]},
        INT,
        "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
    ),
    ({"inputs": [an_input(data=[-1, 2], datatype="UINT8")]}, INT, f"Unable to parse 'data': {UNSIGNED}"),
    (
        {"inputs": [an_input(data=["1", 2], datatype="FP32")]},
        INT,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        {"inputs": [an_input(data=[True, 2], datatype="FP32")]},
        INT,
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    (
        b'{"inputs":[{"name":"I","shape":[1],"datatype":"FP32","data":[1e400]}]}',
        INT,
        "failed to parse the request JSON buffer: Number too big to be stored in double. at 61",
    ),
    (
        {"inputs": [an_input(parameters={"binary_data_size": -1})]},
        INT,
        f"Unable to parse 'binary_data_size': {UNSIGNED}",
    ),
    (
        {"inputs": [an_input(parameters={"binary_data_size": 1 << 70})]},
        INT,
        f"Unable to parse 'binary_data_size': {UNSIGNED}",
    ),
    (
        {"inputs": [], **one_output(shared_memory_region="r", classification=1)},
        ARG,
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        {"inputs": [], **one_output(shared_memory_region="r", binary_data=True)},
        ARG,
        "Output can't set both 'shared_memory_region' and 'binary_data'",
    ),
    (
        {"inputs": [], **one_output(binary_data=1)},
        INT,
        "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
    ),
    ({"inputs": [], **one_output(classification=-1)}, INT, f"Unable to set 'classification': {UNSIGNED}"),
    (
        with_parameters(triton_x=1),
        ARG,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    (
        with_parameters(x=[1]),
        ARG,
        "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    (
        with_parameters(sequence_id=-1),
        INT,
        "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
    ),
    (
        with_parameters(sequence_id="x" * 129),
        ErrorCode.UNSUPPORTED,
        "string correlation ID cannot be longer than 128 characters",
    ),
    (
        with_parameters(sequence_start=1),
        INT,
        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
    ),
    (with_parameters(priority=-1), INT, f"Unable to parse 'priority': {UNSIGNED}"),
    (with_parameters(timeout="1"), INT, f"Unable to parse 'timeout': {UNSIGNED}"),
]


@pytest.mark.parametrize(("document", "code", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_refusals_have_tritons_texts(document: object, code: ErrorCode, message: str) -> None:
    refused, text = refusal(document)
    assert (refused, tritons(text)) == (code, message)


@pytest.mark.parametrize("depth", [101, 250_000])
@pytest.mark.parametrize("datatype", ["INT32", "BYTES"])
def test_deep_nesting_is_refused(depth: int, datatype: str) -> None:
    leaf = b"1" if datatype == "INT32" else b'"a"'
    data = b"[" * depth + leaf + b"]" * depth
    header = b'{"inputs":[{"name":"I","shape":[1],"datatype":"%s","data":%s}]}' % (datatype.encode(), data)
    assert refusal(header) == (ARG, "JSON nesting depth exceeds maximum allowed limit (100)")


@pytest.mark.parametrize(
    ("sizes", "sent", "message"),
    [
        ([8], 4, "unexpected size for input 'I0', expecting 4 additional bytes for model 'm'"),
        ([8, 8], 8, "unexpected size for input 'I1', expecting 8 additional bytes for model 'm'"),
        ([8], 9, "unexpected additional input data for model 'm'"),
        ([], 1, "unexpected additional input data for model 'm'"),
        (
            [1 << 62],
            8,
            f"unexpected size for input 'I0', expecting {(1 << 62) - 8} additional bytes for model 'm'",
        ),
    ],
)
def test_wrong_binary_sizes_are_refused(sizes: Any, sent: Any, message: str) -> None:
    inputs = [an_input(name=f"I{n}", parameters={"binary_data_size": size}) for n, size in enumerate(sizes)]
    assert refusal({"inputs": inputs}, bytes(sent)) == (ARG, message)


def test_size_limits_apply_to_json_and_not_to_binary() -> None:
    document = {"inputs": [an_input(shape=[500], datatype="UINT8", parameters={"binary_data_size": 500})]}
    assert len(decode(document, bytes(500), limit=200).request.inputs[0].data) == 500
    big = {"inputs": [an_input(shape=[100], datatype="FP64", data=[0] * 100)]}
    assert refusal(big, limit=600) == (
        ARG,
        "JSON input 'I' has a byte_size (800 bytes) that exceeds the maximum allowed value of 600 bytes. "
        "Use --http-max-input-size to increase the limit.",
    )
    length = len(json.dumps(big))
    assert refusal(big, limit=100) == (
        ARG,
        f"request JSON size of {length} bytes exceeds the maximum allowed input size of 100 bytes. "
        "Use --http-max-input-size to increase the limit.",
    )


def test_entries_are_limited() -> None:
    assert refusal({"inputs": [], "outputs": [{"name": "o"}] * 5000})[0] is ARG
    assert refusal({"inputs": [an_input(shape=[1] * 65, data=[1])]})[0] is ARG
    assert refusal({"inputs": [], "parameters": {f"p{n}": 1 for n in range(5000)}})[0] is ARG


def test_arrays_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those within a tensor's data too, which may be of any nesting."""
    monkeypatch.setattr(json_part, "MAX_ARRAYS", 1000)
    text = "request JSON has more than 1000 values"
    assert refusal({"inputs": [an_input(shape=[1000], data=[[1]] * 1000)]}) == (ARG, text)
    assert refusal({"inputs": [], "x": [{}] * 1000}) == (ARG, text)
    decode_infer("m", "", json.dumps({"inputs": [an_input(shape=[5000], data=[1] * 5000)]}).encode())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("", "Unable to parse Inference-Header-Content-Length, got: "),
        ("1.5", "Unable to parse Inference-Header-Content-Length, got: 1.5"),
        ("²", "Unable to parse Inference-Header-Content-Length, got: ²"),
        (
            "99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            "[ -2147483648, 2147483647 ], got: 99999999999",
        ),
        ("101", "inference header size should be in range (0, 100), got: 101"),
        ("-1", "inference header size should be in range (0, 100), got: -1"),
    ],
)
def test_header_lengths_refused(value: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        parse_header_length(value, 100)
    assert (caught.value.code, caught.value.message) == (ARG, message)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"inputs": [an_input(data=[1])]}, "input 'I' needs 2 elements by its shape, its data has 1"),
        ({"inputs": [an_input(data=[1, 2, 3])]}, "needs 2 elements by its shape, its data has 3"),
        ({"inputs": [an_input(data=["1", "2"])]}, 'has to be whole numbers (INT32), "1" is none'),
        ({"inputs": [an_input(data=[1, 2], datatype="BYTES")]}, "the data of input 'I' has to be strings"),
        ({"inputs": [an_input(data=[1, 2], datatype="uint8")]}, "'uint8' is written 'UINT8'"),
        ({"inputs": [an_input(data=[1, 2], datatype="float64")]}, "'float64' is written 'FP64'"),
        ({"inputs": [an_input(data=[1, 2], datatype="complex")]}, "the data types are BOOL, UINT8"),
        ({"instances": [[1, 2]]}, "/v1/models/<model>:predict"),
        ({"signature_name": "serving_default", "inputs": {"x": [1]}}, "V1 protocol"),
        ({"data": [1]}, "a v2 body is {'inputs'"),
    ],
)
def test_refusals_say_what_to_do(document: object, words: str) -> None:
    assert words in hint(refusal(document)[1])
