import json
import struct

import msgspec
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import DATATYPES
from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferResponse, RegionSlice, RequestedOutput, Tensor
from app.protocol.http_v2 import (
    Classes,
    decode_infer,
    decode_raw,
    encode_error,
    encode_infer,
    parse_header_length,
)

INT, ARG = ErrorCode.INTERNAL, ErrorCode.INVALID_ARG


def body(document, *tensors):
    header = json.dumps(document).encode() if isinstance(document, dict) else document
    return header + b"".join(tensors), len(header)


def an_input(**fields):
    return {"name": "I", "shape": [2], "datatype": "INT32", **fields}


def decode(document, *tensors, limit=1 << 20):
    return decode_infer("m", "1", *body(document, *tensors), limit)


def refusal(document, *tensors, limit=1 << 20):
    with pytest.raises(InferError) as caught:
        decode(document, *tensors, limit=limit)
    return caught.value.code, caught.value.message


def one_output(name="O", **parameters):
    return {"outputs": [{"name": name, **({"parameters": parameters} if parameters else {})}]}


def test_binary_and_json_inputs_mix_without_copying_the_binary_ones():
    document = {
        "id": "7",
        "inputs": [
            an_input(name="A", parameters={"binary_data_size": 8}),
            an_input(name="B", data=[[3], [4]]),
            an_input(name="C", datatype="BYTES", parameters={"binary_data_size": 10}),
        ],
        "outputs": [
            {"name": "X", "parameters": {"binary_data": True}},
            {"name": "Y", "parameters": {"classification": 3}},
            {"name": "Z"},
        ],
    }
    whole, length = body(document, struct.pack("<ii", 1, 2), b"\x01\0\0\0a\x01\0\0\0b")
    request = decode_infer("m", "", whole, length).request
    assert [tensor.array().tolist() for tensor in request.inputs] == [[1, 2], [3, 4], [b"a", b"b"]]
    assert request.inputs[0].data.obj is whole
    assert request.outputs == (
        RequestedOutput("X", binary=True),
        RequestedOutput("Y", binary=False, classification=3),
        RequestedOutput("Z", binary=False),
    )
    assert (request.id, request.model_name, request.model_version) == ("7", "m", "")


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "BYTES"])
def test_every_fixed_size_type_travels_in_binary_both_ways(datatype):
    size = 2 * DATATYPES[datatype].itemsize
    data = bytes(range(1, size + 1)) if datatype != "BOOL" else b"\x01\x00"
    infer = decode({"inputs": [an_input(datatype=datatype, parameters={"binary_data_size": size})]}, data)
    infer = msgspec.structs.replace(infer, binary_default=True)
    assert bytes(infer.request.inputs[0].data) == data
    encoded = encode_infer(infer, InferResponse("m", "1", infer.request.inputs))
    assert bytes(encoded.parts[1]) == data
    assert json.loads(encoded.parts[0])["outputs"] == [
        {"name": "I", "datatype": datatype, "shape": [2], "parameters": {"binary_data_size": size}}
    ]


@pytest.mark.parametrize(
    ("datatype", "given", "wanted"),
    [
        ("BOOL", [True, False], [True, False]),
        ("UINT8", [300, 1], [44, 1]),
        ("UINT16", [65536, 7], [0, 7]),
        ("UINT32", [1 << 32, 3], [0, 3]),
        ("UINT64", [(1 << 64) - 1, 0], [(1 << 64) - 1, 0]),
        ("INT8", [200, -129], [-56, 127]),
        ("INT16", [1, -2], [1, -2]),
        ("INT32", [[1], [-2]], [1, -2]),
        ("INT64", [-(1 << 63), (1 << 63) - 1], [-(1 << 63), (1 << 63) - 1]),
        ("FP32", [1, 2.5], [1.0, 2.5]),
        ("FP32", [1e300, -1e300], [np.inf, -np.inf]),
        ("FP64", [1 << 70, 0.1], [float(1 << 70), 0.1]),
        ("BYTES", ["é", ""], ["é".encode(), b""]),
        ("INT32", [1, [2]], [1, 2]),
    ],
)
def test_json_data_becomes_wire_bytes(datatype, given, wanted):
    tensor = decode({"inputs": [an_input(datatype=datatype, data=given)]}).request.inputs[0]
    assert tensor.array().tolist() == wanted


def test_nan_and_infinity_literals_are_read():
    header = b'{"inputs":[{"name":"I","shape":[3],"datatype":"FP32","data":[NaN,Infinity,-Infinity]}]}'
    array = decode(header).request.inputs[0].array()
    assert np.isnan(array[0]) and array[1:].tolist() == [np.inf, -np.inf]


def test_json_strings_that_are_not_utf8_keep_their_bytes():
    header = b'{"inputs":[{"name":"I","shape":[1],"datatype":"BYTES","data":["\xff\xfe"]}]}'
    assert decode(header).request.inputs[0].array().tolist() == [b"\xff\xfe"]


def test_reserved_and_custom_parameters_are_told_apart():
    document = {
        "inputs": [],
        "parameters": {
            "sequence_id": 9,
            "sequence_start": True,
            "sequence_end": False,
            "priority": 2,
            "timeout": 100,
            "binary_data_output": True,
            "flag": True,
            "count": 3,
            "ratio": 0.5,
            "text": "x",
            "huge": 1 << 63,
        },
    }
    infer = decode(document)
    request = infer.request
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (9, True, False)
    assert (request.priority, request.timeout_us, infer.binary_default) == (2, 100, True)
    assert request.parameters == {"flag": True, "count": 3, "ratio": 0.5, "text": "x", "huge": 2.0**63}
    assert decode({"inputs": [], "parameters": {"sequence_id": "abc"}}).request.sequence_id == "abc"


def test_shared_memory_is_decoded_and_left_out_of_the_response():
    document = {
        "inputs": [
            an_input(name="A", parameters={"shared_memory_region": "r", "shared_memory_byte_size": 8}),
            an_input(name="B", parameters={"binary_data_size": 8}),
        ],
        **one_output(shared_memory_region="s", shared_memory_byte_size=4, shared_memory_offset=16),
    }
    infer = decode(document, bytes(8))
    assert infer.request.regions and not infer.prints
    assert infer.request.inputs[0].data == RegionSlice("r", 0, 8)
    assert bytes(infer.request.inputs[1].data) == bytes(8)
    assert infer.request.outputs[0].region == RegionSlice("s", 16, 4)
    response = InferResponse("m", "1", (Tensor("O", "FP32", (1,), b""),))
    assert json.loads(encode_infer(infer, response).parts[0])["outputs"] == [
        {"name": "O", "datatype": "FP32", "shape": [1]}
    ]


def test_repeated_headers_do_not_share_data():
    document = {"inputs": [an_input(parameters={"binary_data_size": 8})]}
    first, second = (decode(document, struct.pack("<ii", n, n)).request for n in (1, 2))
    assert first.inputs[0].array().tolist() == [1, 1]
    assert second.inputs[0].array().tolist() == [2, 2]


NO_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)
UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


def with_parameters(**parameters):
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
def test_parameters_of_no_type_that_parameters_have(key, code, message, value):
    assert refusal({"inputs": [an_input(data=[1, 2])], "parameters": {key: value}}) == (code, message)


def test_an_empty_shape_is_for_the_model_to_refuse():
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
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
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
        "failed to parse the request JSON buffer: Number too big to be stored in double. at 1",
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
def test_what_is_wrong_is_said_in_tritons_words(document, code, message):
    assert refusal(document) == (code, message)


@pytest.mark.parametrize("depth", [101, 250_000])
@pytest.mark.parametrize("datatype", ["INT32", "BYTES"])
def test_deep_nesting_is_refused(depth, datatype):
    leaf = b"1" if datatype == "INT32" else b'"a"'
    data = b"[" * depth + leaf + b"]" * depth
    header = b'{"inputs":[{"name":"I","shape":[1],"datatype":"%s","data":%s}]}' % (datatype.encode(), data)
    assert refusal(header) == (ARG, "JSON nesting depth exceeds maximum allowed limit (100)")


def test_a_nesting_of_100_is_read_and_ragged_nesting_is_bounded():
    data = b"[" * 100 + b"1" + b"]" * 100
    header = b'{"inputs":[{"name":"I","shape":[1],"datatype":"INT32","data":%s}]}'
    assert decode(header % data).request.inputs[0].array().tolist() == [1]
    ragged = b"[1," + b"[" * 101 + b"]" * 101 + b"]"
    assert refusal(header % ragged)[0] is ARG


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
def test_lying_binary_sizes(sizes, sent, message):
    inputs = [an_input(name=f"I{n}", parameters={"binary_data_size": size}) for n, size in enumerate(sizes)]
    assert refusal({"inputs": inputs}, bytes(sent)) == (ARG, message)


def test_size_limits_concern_json_and_not_binary():
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


def test_counts_are_bounded():
    assert refusal({"inputs": [], "outputs": [{"name": "o"}] * 5000})[0] is ARG
    assert refusal({"inputs": [an_input(shape=[1] * 65, data=[1])]})[0] is ARG


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
def test_header_lengths_refused(value, message):
    with pytest.raises(InferError) as caught:
        parse_header_length(value, 100)
    assert (caught.value.code, caught.value.message) == (ARG, message)


def test_header_lengths_accepted():
    assert [parse_header_length(text, 100) for text in ("0", "100", "007")] == [0, 100, 7]


def a_config(text):
    return text_format.Parse(text, mc.ModelConfig(name="m"))


FP32 = 'input { name: "I" data_type: TYPE_FP32 dims: %s } max_batch_size: %d'


@pytest.mark.parametrize(
    ("dims", "batch", "shape"), [("[-1]", 4, (1, 8)), ("[2, -1]", 0, (2, 4)), ("[8]", 0, (8,))]
)
def test_raw_request_deduces_its_shape(dims, batch, shape):
    infer = decode_raw("m", "", bytes(32), a_config(FP32 % (dims, batch)))
    assert (infer.request.inputs[0].shape, infer.binary_default) == (shape, True)


def test_raw_bytes_get_their_length_put_in_front():
    config = a_config('input { name: "I" data_type: TYPE_STRING dims: [1] }')
    assert decode_raw("m", "", b"427", config).request.inputs[0].data == b"\x03\0\0\x00427"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            'input { name: "A" } input { name: "B" } input { name: "C" }',
            "Raw request must only have 1 input (found 1) to be deduced but got 3 inputs in 'm' "
            "model configuration",
        ),
        (
            'input { name: "I" data_type: TYPE_STRING dims: [-1] }',
            "For BYTE datatype raw input 'I', the model must have input shape [1]",
        ),
        (
            FP32 % ("[-1, -1]", 0),
            "The shape of the raw input 'I' can not be deduced because there are more than one "
            "variable-sized dimension",
        ),
    ],
)
def test_raw_requests_refused(config, message):
    with pytest.raises(InferError) as caught:
        decode_raw("m", "", b"1234", a_config(config))
    assert caught.value.message == f"[request id: <id_unknown>] {message}"


def test_raw_request_is_bounded():
    with pytest.raises(InferError, match=r"Raw input has a byte_size \(9 bytes\) that exceeds"):
        decode_raw("m", "", bytes(9), a_config(FP32 % ("[-1]", 0)), 8)


def answer(*tensors, outputs=None, **fields):
    document = {"inputs": [], **(outputs or {})}
    return encode_infer(decode(document), InferResponse("m", "1", tensors, **fields), lambda *_: CLASSES)


def test_binary_responses_differ_in_what_differs():
    binary = {"outputs": [{"name": "O", "parameters": {"binary_data": True}}]}
    given = [(b"12", (1, 2), "1"), (b"34", (1, 2), "1"), (b"34", (2, 1), "1"), (b"345", (1, 3), "2")]
    for data, shape, version in given * 2:
        tensors = (Tensor("O", "INT8", shape, data),)
        encoded = encode_infer(decode({"inputs": [], **binary}), InferResponse("m", version, tensors))
        head, *parts = encoded.parts
        assert json.loads(head) == {
            "model_name": "m",
            "model_version": version,
            "outputs": [
                {
                    "name": "O",
                    "datatype": "INT8",
                    "shape": [*shape],
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
        }
        assert parts == [data] and f"Content-Length: {len(head)}\r\n".encode() in encoded.headers
    both = (Tensor("O", "INT8", (1,), b"1"), Tensor("P", "INT8", (1,), b"1"))
    head, *parts = answer(*both, outputs=binary).parts
    assert json.loads(head)["outputs"][1] == {"name": "P", "datatype": "INT8", "shape": [1], "data": [49]}
    assert parts == [b"1"]
    assert json.loads(answer(both[0], outputs={"id": "7", **binary}).parts[0])["id"] == "7"


CLASSES = Classes(("zero", "one"), batched=True)


@pytest.mark.parametrize(
    ("array", "datatype", "data"),
    [
        (np.array([0.1, 1, 3e38], np.float32), "", b"[0.10000000149011612,1.0,3.0000000054977558e38]"),
        (np.array([0.1, -0.0, 1e-5]), "", b"[0.1,-0.0,"),
        (np.array([np.nan, np.inf, -np.inf, 1.0], np.float32), "", b"[NaN,Infinity,-Infinity,1.0]"),
        (np.array([[1, -2], [3, 4]], np.int8), "", b"[1,-2,3,4]"),
        (np.array([2**64 - 1], np.uint64), "", b"[18446744073709551615]"),
        (np.array([True, False]), "", b"[true,false]"),
        (np.array([b'a"\\\n', "é".encode()], object), "", '["a\\"\\\\\\n","é"]'.encode()),
        (np.array([b"\xff"], object), "", b'["\xff"]'),
        (np.zeros((0, 3), np.float32), "", b"[]"),
    ],
)
def test_json_outputs_are_printed_as_triton_prints_them(array, datatype, data):
    encoded = answer(Tensor.of("O", array, datatype))
    assert encoded.headers == b"Content-Type: application/json\r\n"
    assert b'"data":' + data in encoded.parts[0]


def test_golden_responses():
    tensor = Tensor.of("O", np.array([[1.5, 2]], np.float32))
    assert answer(tensor, id="7", parameters={"k": 1, "b": True}).parts == [
        b'{"id":"7","model_name":"m","model_version":"1","parameters":{"k":1,"b":true},'
        b'"outputs":[{"name":"O","datatype":"FP32","shape":[1,2],"data":[1.5,2.0]}]}'
    ]
    header = (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"O","datatype":"FP32","shape":[1,2],'
        b'"parameters":{"binary_data_size":8}}]}'
    )
    encoded = answer(tensor, outputs=one_output(binary_data=True))
    assert encoded.headers == (
        b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % len(header)
    )
    assert encoded.parts == [header, tensor.data]
    assert encoded.parts[1] is tensor.data


def test_an_empty_binary_output_leaves_a_json_body():
    encoded = answer(Tensor("O", "INT8", (0,), b""), outputs=one_output(binary_data=True))
    assert encoded.headers == b"Content-Type: application/json\r\n"
    assert b'"parameters":{"binary_data_size":0}' in encoded.parts[0]


def test_classification_output():
    tensor = Tensor.of("O", np.array([[1, 3, 2], [-1, -2, -31]], np.float32))
    encoded = answer(tensor, outputs=one_output(classification=2))
    assert json.loads(encoded.parts[0])["outputs"] == [
        {
            "name": "O",
            "datatype": "BYTES",
            "shape": [2, 2],
            "data": ["3.000000:1:one", "2.000000:2", "-1.000000:0:zero", "-2.000000:1:one"],
        }
    ]


@pytest.mark.parametrize(
    ("tensor", "code", "message"),
    [
        (
            Tensor("O", "FP16", (1,), b"\0\0"),
            ARG,
            "sending FP16 data via JSON is not supported. Please use the binary data format for output",
        ),
        (
            Tensor("O", "BF16", (1,), b"\0\0"),
            ARG,
            "sending BF16 data via JSON is not supported. Please use the binary data format for output",
        ),
        (
            Tensor("O", "FP32", (2,), b"\0" * 4),
            INT,
            "output tensor shape does not match size of output for 'O'",
        ),
        (
            Tensor("O", "BYTES", (1,), b"\xff\0\0\0a"),
            INT,
            "output tensor shape does not match size of output for 'O'",
        ),
    ],
)
def test_outputs_that_cannot_be_printed(tensor, code, message):
    with pytest.raises(InferError) as caught:
        answer(tensor)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_error_bodies_are_always_json():
    assert encode_error('a "b"\n') == b'{"error":"a \\"b\\"\\n"}'
    assert json.loads(encode_error("\udcff"))
