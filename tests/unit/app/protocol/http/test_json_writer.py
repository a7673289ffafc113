"""The compiled writer of tensors as JSON: the bytes of the reference, or nothing."""

import math
import struct
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.datatypes import DATATYPES, pack_bytes
from app.core.errors import InferError
from app.core.tensors import Tensor
from app.protocol.http.compiled import data_encoder
from app.protocol.http.json_tensors import encode_data

extension = pytest.importorskip("app.native.extension")
NUMBERS = [name for name, row in DATATYPES.items() if name not in ("BYTES", "FP16", "BF16")]


def check(datatype: str, data: bytes, count: int) -> None:
    """Compare, where the reference writes anything, and where it refuses."""
    tensor = Tensor("t", datatype, (count,), data)
    found = extension.json_data(datatype, count, data)
    try:
        expected = encode_data(tensor)
    except InferError:
        assert found is None
        return
    assert found == expected or (found is None and datatype == "BYTES")
    assert data_encoder("native")(tensor) == expected


def check_doubles(values: list[float]) -> None:
    check("FP64", struct.pack(f"<{len(values)}d", *values), len(values))


@given(st.sampled_from(NUMBERS), st.binary(max_size=64))
def test_numbers_of_any_bits_are_written_as_the_reference_does(datatype: str, data: bytes) -> None:
    size = DATATYPES[datatype].itemsize
    check(datatype, data, len(data) // size)
    check(datatype, data[: len(data) // size * size], len(data) // size)


@given(st.lists(st.floats() | st.floats(width=32)))
def test_floats_are_the_shortest_decimals_that_are_read_as_the_same(values: list[float]) -> None:
    check_doubles(values)


def test_powers_and_their_neighbours() -> None:
    powers = [2.0**n for n in range(-1074, 1024)] + [float(f"1e{n}") for n in range(-323, 309)]
    around = [
        each
        for power in powers
        for each in (math.nextafter(power, 0), power, math.nextafter(power, math.inf))
    ]
    check_doubles([each for each in around if math.isfinite(each)])
    check_doubles([-each for each in powers])


def test_doubles_of_all_magnitudes_and_lengths() -> None:
    random = np.random.default_rng(0)
    for array in (
        random.integers(0, 1 << 64, 20_000, np.uint64).view(np.float64),
        random.integers(0, 1 << 30, 5_000, np.uint64).view(np.float64),  # denormal
        random.integers(0, 1 << 53, 5_000).astype(np.float64),
        np.round(random.standard_normal(5_000) * 1e4, 2),
    ):
        check("FP64", array.tobytes(), len(array))
    check("FP32", random.integers(0, 1 << 32, 20_000, np.uint32).tobytes(), 20_000)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, b"0.0"),
        (-0.0, b"-0.0"),
        (math.nan, b"NaN"),
        (-math.inf, b"-Infinity"),
        (5e-324, b"5e-324"),
        (1e-5, b"0.00001"),
        (1.5e-6, b"1.5e-6"),
        (1e16, b"10000000000000000.0"),
        (1.5e20, b"150000000000000000000.0"),
        (1e21, b"1e21"),
        (1.7976931348623157e308, b"1.7976931348623157e308"),
    ],
)
def test_forms_of_numbers(value: float, text: bytes) -> None:
    assert extension.json_data("FP64", 1, struct.pack("<d", value)) == b"[%b]" % text


@pytest.mark.parametrize("datatype", [name for name in NUMBERS if "INT" in name])
def test_limits_of_integers(datatype: str) -> None:
    dtype = DATATYPES[datatype].dtype
    bits = 8 * dtype.itemsize - (dtype.kind == "i")
    most = (1 << bits) - 1
    array = np.array([-most - 1 if dtype.kind == "i" else 0, 0, 9, 10, 99, 100, most], dtype)
    check(datatype, array.tobytes(), len(array))
    assert extension.json_data(datatype, len(array), array.tobytes()).endswith(b",%d]" % most)


@given(
    st.lists(st.binary(max_size=12) | st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace")))
)
def test_strings_are_written_as_the_reference_does(elements: list[bytes]) -> None:
    check("BYTES", pack_bytes(elements), len(elements))


@given(st.binary(max_size=40), st.integers(0, 5))
def test_strings_of_wrong_lengths_are_left_to_the_reference(data: bytes, count: int) -> None:
    check("BYTES", data, count)


def test_strings_that_grow_are_written_whole() -> None:
    for element in (b"\x01" * 5000, b'"\\\n' * 3000, "é😀".encode() * 500, b"", bytes(range(128))):
        for count in (1, 3):
            text = extension.json_data("BYTES", count, pack_bytes([element] * count))
            assert text == encode_data(Tensor("t", "BYTES", (count,), pack_bytes([element] * count)))


def test_what_is_not_written_is_none() -> None:
    assert extension.json_data("FP16", 1, b"ab") is None
    assert extension.json_data("WORD", 1, b"ab") is None
    assert extension.json_data("INT32", 2, b"abcd") is None
    assert extension.json_data("INT32", -1, b"") is None
    assert extension.json_data("BYTES", 1, pack_bytes([b"\xff"])) is None
    assert extension.json_data("INT8", 0, b"") == b"[]"
    assert extension.json_data("BYTES", 0, b"") == b"[]"


def test_much_data_is_written_without_the_interpreter() -> None:
    data = np.random.default_rng(0).standard_normal(2_000_000).tobytes()
    thread = threading.Thread(target=extension.json_data, args=("FP64", 2_000_000, data))
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10  # of 80 ms that it takes or more: with the lock held there would be none in between
