"""Every data type there and back, in every way a client can send and ask for it."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.contract.drivers import Driver, Input, Output, Refused
from tests.contract.samples import strings


def extremes(dtype: type) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.array([[limits.min, 0, 1, limits.max]], dtype=dtype)


def odd_floats(dtype: type) -> np.ndarray:
    limits = np.finfo(dtype)
    values = [0.0, -0.0, 0.1, limits.max, limits.min, limits.smallest_subnormal, np.inf, -np.inf, np.nan]
    return np.array([values], dtype=dtype)


VALUES = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": extremes(np.uint8),
    "UINT16": extremes(np.uint16),
    "UINT32": extremes(np.uint32),
    "UINT64": extremes(np.uint64),
    "INT8": extremes(np.int8),
    "INT16": extremes(np.int16),
    "INT32": extremes(np.int32),
    "INT64": extremes(np.int64),
    "FP16": odd_floats(np.float16),
    "BF16": np.array([[0.0, -0.0, 1.5, -3.0e38, np.inf]], dtype=ml_dtypes.bfloat16),
    "FP32": odd_floats(np.float32),
    "FP64": odd_floats(np.float64),
    "BYTES": strings(
        b"", b"\0", b"text", b"a\0b\0", b"\xff\xfe\x80", "\u00e9\U0001f600".encode(), b"x" * 70_000
    ),
}
# JSON has no form for these, and a JSON string holds text only.
JSON_VALUES = {
    **{name: value for name, value in VALUES.items() if name not in ("FP16", "BF16", "BYTES")},
    "BYTES": strings(b"", b"text", b"a\0b", b'quote " and \\', "\u00e9\U0001f600".encode()),
}


def wire(datatype: str, array: np.ndarray) -> bytes:
    """The protocol's own layout of an array."""
    if datatype == "BYTES":
        return b"".join(len(element).to_bytes(4, "little") + element for element in array.ravel())
    return array.tobytes()


def echo(
    client: Driver, datatype: str, array: np.ndarray, binary_in: bool = True, binary_out: bool = True
) -> Any:
    tensor = Input(f"INPUT_{datatype}", array, datatype, binary=binary_in)
    return client.infer("identity_all", [tensor], [Output(f"OUTPUT_{datatype}", binary=binary_out)])


@pytest.mark.parametrize("datatype", VALUES)
def test_binary_round_trip(client: Driver, datatype: str) -> None:
    array = VALUES[datatype]
    response = echo(client, datatype, array)
    output = response.output(f"OUTPUT_{datatype}")
    assert (output["datatype"], output["shape"]) == (datatype, list(array.shape))
    assert response.raw(f"OUTPUT_{datatype}") == wire(datatype, array)


@pytest.mark.parametrize("datatype", VALUES)
def test_clients_decode_what_they_sent(client: Driver, datatype: str) -> None:
    array = VALUES[datatype]
    np.testing.assert_array_equal(echo(client, datatype, array).array(f"OUTPUT_{datatype}"), array)


@pytest.mark.parametrize("datatype", VALUES)
def test_tensor_without_elements(client: Driver, datatype: str) -> None:
    array = np.empty((1, 0), dtype=VALUES[datatype].dtype)
    response = echo(client, datatype, array)
    assert response.output(f"OUTPUT_{datatype}")["shape"] == [1, 0]
    assert response.raw(f"OUTPUT_{datatype}") == b""


@pytest.mark.parametrize("rows", range(1, 9))
def test_every_batch_size(client: Driver, rows: int) -> None:
    array = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    np.testing.assert_array_equal(echo(client, "FP32", array).array("OUTPUT_FP32"), array)


def test_tensor_of_some_megabytes(client: Driver) -> None:
    array = np.random.default_rng(1).standard_normal((8, 250_000), dtype=np.float32)
    np.testing.assert_array_equal(echo(client, "FP32", array).array("OUTPUT_FP32"), array)


def test_many_strings(client: Driver) -> None:
    array = np.array([[str(number).encode() for number in range(10_000)]] * 2, dtype=np.object_)
    np.testing.assert_array_equal(echo(client, "BYTES", array).array("OUTPUT_BYTES"), array)


def test_many_types_in_one_request(client: Driver) -> None:
    inputs = [Input(f"INPUT_{name}", array, name) for name, array in VALUES.items()]
    outputs = [Output(f"OUTPUT_{name}") for name in VALUES]
    response = client.infer("identity_all", inputs, outputs)
    assert sorted(response.names) == sorted(output.name for output in outputs)
    for name, array in VALUES.items():
        assert response.raw(f"OUTPUT_{name}") == wire(name, array), name


@pytest.mark.parametrize("datatype", JSON_VALUES)
@pytest.mark.parametrize(
    ("binary_in", "binary_out"),
    [(False, False), (False, True), (True, False)],
    ids=["json-json", "json-binary", "binary-json"],
)
def test_json_round_trip(http_client: Driver, datatype: str, binary_in: bool, binary_out: bool) -> None:
    array = JSON_VALUES[datatype]
    response = echo(http_client, datatype, array, binary_in, binary_out)
    assert ("data" in response.output(f"OUTPUT_{datatype}")) is not binary_out
    decoded = response.array(f"OUTPUT_{datatype}")
    if datatype == "BYTES" and not binary_out:
        decoded = np.array([[text.encode() for text in decoded[0]]], dtype=np.object_)
    np.testing.assert_array_equal(decoded, array)


@pytest.mark.parametrize("first_binary", [True, False])
def test_json_and_binary_in_one_request(http_client: Driver, first_binary: bool) -> None:
    array = VALUES["INT32"]
    inputs = [
        Input("INPUT_INT32", array, "INT32", binary=first_binary),
        Input("INPUT_FP32", array.astype(np.float32), "FP32", binary=not first_binary),
    ]
    outputs = [Output("OUTPUT_INT32", binary=not first_binary), Output("OUTPUT_FP32", binary=first_binary)]
    response = http_client.infer("identity_all", inputs, outputs)
    np.testing.assert_array_equal(response.array("OUTPUT_INT32"), array)
    np.testing.assert_array_equal(response.array("OUTPUT_FP32"), array.astype(np.float32))


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_output_has_no_json_form(http_client: Driver, datatype: str) -> None:
    with pytest.raises(Refused) as caught:
        echo(http_client, datatype, VALUES[datatype], binary_out=False)
    assert caught.value.refusal == (
        "400",
        f"sending {datatype} data via JSON is not supported. Please use the binary data format for output",
    )


TYPED_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@pytest.mark.parametrize("datatype", TYPED_FIELDS)
def test_typed_contents_over_grpc(
    grpc_stub: service_pb2_grpc.GRPCInferenceServiceStub, datatype: str
) -> None:
    array = VALUES[datatype]
    request = pb.ModelInferRequest(model_name="identity_all")
    contents = {TYPED_FIELDS[datatype]: array.ravel().tolist()}
    request.inputs.add(name=f"INPUT_{datatype}", datatype=datatype, shape=array.shape, contents=contents)
    request.outputs.add(name=f"OUTPUT_{datatype}")
    response = grpc_stub.ModelInfer(request)
    assert list(response.raw_output_contents) == [wire(datatype, array)]
    assert not response.outputs[0].HasField("contents")


def test_unicode_strings_of_the_example_model(client: Driver) -> None:
    array = np.array([["\u00fcber", "", "\u65e5\u672c\u8a9e"]], dtype=np.object_)
    response = client.infer("simple_identity", [Input("INPUT0", array, "BYTES")])
    assert [element.decode() for element in response.array("OUTPUT0")[0]] == array[0].tolist()


def test_sums_of_integers_as_text(client: Driver) -> None:
    first = np.array([[str(number).encode() for number in range(16)]], dtype=np.object_)
    second = np.array([[b"1"] * 16], dtype=np.object_)
    response = client.infer(
        "simple_string", [Input("INPUT0", first, "BYTES"), Input("INPUT1", second, "BYTES")]
    )
    assert response.array("OUTPUT0")[0].tolist() == [str(number + 1).encode() for number in range(16)]
    assert response.array("OUTPUT1")[0].tolist() == [str(number - 1).encode() for number in range(16)]


def test_custom_identity_of_a_large_batch(client: Driver) -> None:
    array = np.arange(1000 * 4, dtype=np.int32).reshape(1000, 4)
    response = client.infer("custom_identity_int32", [Input("INPUT0", array, "INT32")])
    np.testing.assert_array_equal(response.array("OUTPUT0"), array)
