"""JSON that Triton refuses: reason and offset as tritonserver 2.51 was seen to give them."""

import json
import time

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import Tensor
from app.protocol.http import strict_json
from app.protocol.http.json_tensors import encode_data
from app.protocol.http.strict_json import check_count, check_values, parse, parse_first

FAULTS = {
    b"": "The document is empty. at 0",
    b"\0": "The document is empty. at 0",
    b"nul": "Invalid value. at 3",
    b'{"inputs":[tru]}': "Invalid value. at 14",
    b'{"inputs":[nan]}': "Invalid value. at 12",
    b'{"inputs":[-]}': "Invalid value. at 12",
    b'{"inputs":[.5]}': "Invalid value. at 11",
    b'{"inputs":[1.]}': "Miss fraction part in number. at 13",
    b'{"inputs":[1e]}': "Miss exponent in number. at 13",
    b'{"inputs":[1e999]}': "Number too big to be stored in double. at 11",
    b'{"inputs":[{"name":"a}]}': "Missing a closing quotation mark in string. at 24",
    b'{"inputs":[{"name":"\\u12"}]}': "Incorrect hex digit after \\u escape in string. at 20",
    b'{"inputs":[{"name":"\\ud800"}]}': "The surrogate pair in string is invalid. at 20",
    b'{"inputs":[{"name":"\t"}]}': "Invalid escape character in string. at 20",
    b'{"inputs":[1 2]}': "Missing a comma or ']' after an array element. at 13",
    b'{"inputs":["}",{}] "x"}': "Missing a comma or '}' after an object member. at 19",
    '{"é":tru}'.encode(): "Invalid value. at 9",
    b'{"a":"b\0c"}': "Missing a closing quotation mark in string. at 7",
    b"{} x": "The document root must not be followed by other values. at 3",
}


@pytest.mark.parametrize(("document", "fault"), FAULTS.items(), ids=map(repr, FAULTS))
def test_fault(document: bytes, fault: str) -> None:
    with pytest.raises(InferError) as caught:
        parse(document)
    assert caught.value.message == f"failed to parse the request JSON buffer: {fault}"
    assert caught.value.code is ErrorCode.INTERNAL


@pytest.mark.parametrize("document", [b'{"a":1}\0 binary data', b'\xef\xbb\xbf{"a":1}'])
def test_byte_order_mark_and_data_after_nul_are_ignored(document: bytes) -> None:
    assert parse(document) == {"a": 1}


def test_surrogates_that_pair_or_are_escaped() -> None:
    assert parse(b'["\\ud83d\\ude00","\\\\ud800",NaN]')[:2] == ["\U0001f600", "\\ud800"]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64 << 10])
def test_values_are_counted_outside_strings_alone(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the document is cut into pieces."""
    monkeypatch.setattr(strict_json, "_PIECE", piece)
    value = {"a[\\": [1, '\\"{,[', {'"': ["[\\\\", []]}], "[[": "}"}
    document = json.dumps(value, separators=(",", ":")).encode()
    check_values(document, b"[{", 5)
    with pytest.raises(InferError, match="more than 4 values"):
        check_values(document, b"[{", 4)
    check_values(document, b",", 4)
    with pytest.raises(InferError, match="more than 3 values"):
        check_values(document, b",", 3)
    check_count(document, b"[{", 11)
    with pytest.raises(InferError, match="more than 10 values"):
        check_count(document, b"[{", 10)  # also within strings


@pytest.mark.parametrize(
    "hostile",
    [
        b"[" * 90 + b"[]" * 500_000,
        b'{"a":["' + b'\\"' * 500_000,
        b'{"a":["' + b'\\"a' * 500_000 + b'" 1]}',
        b"\\\\" * 500_000,
    ],
)
def test_syntax_errors_are_found_in_linear_time(hostile: bytes) -> None:
    started = time.monotonic()
    with pytest.raises(InferError):
        parse(hostile)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (1e15, "1000000000000000.0"),
        (1e16, "10000000000000000.0"),
        (-1.5e20, "-150000000000000000000.0"),
        (1e21, "1e21"),
        (0.1, "0.1"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_floats_are_encoded_like_rapidjson(value: float, printed: str) -> None:
    """Alone, and beside one that takes the other road."""
    for values in ([value], [value, 1e17]):
        tensor = Tensor("OUT", "FP64", (len(values),), np.array(values).tobytes())
        rest = ",100000000000000000.0" * (len(values) - 1)
        assert encode_data(tensor) == f"[{printed}{rest}]".encode()


def test_first_of_equal_keys_counts_where_asked() -> None:
    document = parse_first(b'{"a":1,"b":{"c":[1],"c":2},"a":3}')
    assert document == {"a": 1, "b": {"c": [1]}} and list(document) == ["a", "b"]


def test_lone_surrogates_are_found_in_management_documents() -> None:
    with pytest.raises(InferError, match="surrogate pair"):
        parse_first(b'{"a":"\\ud800"}')
