"""Values of a call as arrays and bytes, and back."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nereid_client import InputError
from nereid_client.datatypes import NUMPY, byte_size, decode, encode, to_array
from nereid_client.grpc import _message, encode_request
from nereid_client.messages import Input, Request, Slice
from nereid_client.pool import read_size
from nereid_client.signature import read_signature

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
NUMERIC = sorted(set(NUMPY) - {"BYTES", "BF16"})


@given(st.data(), st.sampled_from(NUMERIC))
def test_numbers_return(data: st.DataObject, datatype: str) -> None:
    array = data.draw(arrays.arrays(NUMPY[datatype], SHAPES))
    encoded = encode(to_array("X", array, datatype), datatype)
    assert len(encoded) == byte_size(datatype, array.shape)
    np.testing.assert_array_equal(decode(encoded, datatype, array.shape), array)


@given(st.lists(st.binary(max_size=6), max_size=5))
def test_bytes_return(elements: list[bytes]) -> None:
    array = to_array("X", elements, "BYTES")
    assert decode(encode(array, "BYTES"), "BYTES", array.shape).tolist() == elements


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.0, np.inf, np.nan], np.float32)
    found = decode(encode(values, "BF16"), "BF16", values.shape)
    np.testing.assert_array_equal(found, np.array([1.0, 1.0, 1.015625, -3.0, np.inf, np.nan], np.float32))


@pytest.mark.parametrize(
    ("value", "datatype", "text"),
    [
        (np.zeros(2), "FP32", "the array is float64: convert it with .astype('float32')"),
        ([300], "UINT8", "out of bounds"),
        (["x"], "INT32", "invalid literal"),
        ([1], "BYTES", "give str or bytes, not int"),
        ([[1], [2, 3]], "INT32", "inhomogeneous"),
        ([1], "TURTLE", "which this client does not know"),
    ],
)
def test_values_of_another_datatype(value: Any, datatype: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        to_array("X", value, datatype)
    assert text in str(caught.value) and "'X'" in str(caught.value)


def test_arrays_that_lose_nothing_are_converted() -> None:
    assert to_array("X", np.arange(3, dtype=np.int8), "INT64").dtype == np.int64


def test_cut_off_bytes() -> None:
    with pytest.raises(ValueError, match="cut off"):
        decode(b"\x05\0\0\0ab", "BYTES", (1,))


def uint8(name: str, size: int) -> Input:
    return Input(name, "UINT8", (size,), encode(np.full(size, 7, np.uint8), "UINT8"))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_a_request_over_grpc_is_its_message(size: int) -> None:
    placed = Input("P", "UINT8", (4,), Slice("region", 0, 4))
    request = Request("m", "1", (uint8("A", size), placed, uint8("B", 3)), (), "id", {"n": 1})
    message = _message(request)
    assert [len(raw) for raw in message.raw_input_contents] == [size, 3]
    assert type(message).FromString(encode_request(request)) == message


def test_a_request_over_grpc_copies_its_tensors_once() -> None:
    request = Request("m", "", (uint8("A", 10_000_000),))
    tracemalloc.start()
    encode_request(request)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_500_000


def test_signature_out_of_grpc_json() -> None:
    """There 64-bit numbers are strings, and what is zero is left out."""
    metadata = {"inputs": [{"name": "X", "datatype": "FP32", "shape": ["-1", "2"]}], "outputs": []}
    config = {"max_batch_size": 4, "input": [{"name": "X", "optional": True}]}
    signature = read_signature(metadata, config)
    assert signature.batched and signature.inputs["X"].shape == (-1, 2) and signature.inputs["X"].optional
    assert signature.arrays({}) == ({}, True)
    found, added = signature.arrays({"X": [1, 2]})
    assert added and found["X"].tolist() == [[1, 2]]


def test_a_number_fills_one_element() -> None:
    metadata = {"inputs": [{"name": "X", "datatype": "BYTES", "shape": [-1, 1]}], "outputs": []}
    found, added = read_signature(metadata, {"max_batch_size": 4}).arrays({"X": "text"})
    assert added and found["X"].tolist() == [[b"text"]]


@pytest.mark.parametrize(
    ("size", "found"), [(64, 64), ("4MiB", 4 << 20), ("2 kB", 2048), ("1g", None), ("0", None)]
)
def test_sizes(size: int | str, found: int | None) -> None:
    if found is None:
        with pytest.raises(ValueError, match="is no size"):
            read_size(size)
    else:
        assert read_size(size) == found
