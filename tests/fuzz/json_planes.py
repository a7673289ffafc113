"""JSON that C reads and writes beside what Python does."""

from typing import Any

import msgspec

from app.core.datatypes import DATATYPES
from app.core.errors import InferError
from app.core.tensors import RegionSlice, Tensor
from app.native.choice import missing
from app.protocol.http.compiled import data_encoder, infer_decoder
from app.protocol.http.json_tensors import encode_data
from app.protocol.http.v2 import HttpInfer, decode_infer
from tests.fuzz.target import LIMIT, Target, cut

_NAMES = sorted(DATATYPES)
_PLANE = "auto" if missing() else "native"
_read, _write = infer_decoder(_PLANE), data_encoder(_PLANE)


def json_read(data: bytes) -> None:
    """Two bytes with the length of the JSON (0: all), then a body: both planes read, or refuse, the same."""
    length, body = cut(data)
    length = length or len(body)
    try:
        expected = decode_infer("m", "", body, length, LIMIT)
    except InferError as error:
        try:
            _read("m", "", body, length, LIMIT)
        except InferError as same:
            assert (same.code, same.message) == (error.code, error.message)
            raise
        raise AssertionError("only Python refuses it") from error
    assert _plain(_read("m", "", body, length, LIMIT)) == _plain(expected)


def _plain(infer: HttpInfer) -> str:
    """Return a request as text: NaN is not itself, and data may be a view or a copy."""
    found: Any = msgspec.to_builtins(infer)
    for tensor, described in zip(infer.request.inputs, found["request"]["inputs"], strict=True):
        described["data"] = tensor.data if isinstance(tensor.data, RegionSlice) else bytes(tensor.data)
    return repr(found)


def json_written(data: bytes) -> None:
    """A byte that chooses the data type, then the elements: both planes write the same."""
    datatype, data = _NAMES[data[0] % len(_NAMES)] if data else "FP32", data[1:]
    size = DATATYPES[datatype].itemsize
    count = len(data) // size if size else data.count(b"\0\0\0")
    tensor = Tensor("t", datatype, (count,), data[: count * size] if size else data)
    expected = _outcome(encode_data, tensor)
    assert _outcome(_write, tensor) == expected


def _outcome(encode: Any, tensor: Tensor) -> object:
    try:
        return encode(tensor)
    except InferError as error:
        return error.code, error.message


def _body(*inputs: str, more: str = "", tensors: bytes = b"") -> bytes:
    text = f'{{"inputs": [{", ".join(inputs)}]{more}}}'.encode()
    return (len(text) if tensors else 0).to_bytes(2, "little") + text + tensors


def _input(datatype: str, data: str, shape: str = "[2]") -> str:
    return f'{{"name": "I", "shape": {shape}, "datatype": "{datatype}", "data": {data}}}'


JSON = {
    "json_read": Target(
        json_read,
        (InferError,),
        (
            _body(_input("FP32", "[1.5e-3, -0.1]"), _input("FP64", "[1e308, 1234567890123456789012345]")),
            _body(_input("INT8", "[[-128], [127]]", "[2, 1]"), _input("UINT64", "[0, 18446744073709551615]")),
            _body(_input("BOOL", "[true, false]"), _input("FP16", "[1, 2]"), _input("BF16", "[0.5, 65504]")),
            _body(_input("BYTES", '["a\\u00e9\\n\\"", "\\ud83d\\ude00é"]'), more=', "id": "x"'),
            _body(
                '{"name": "I", "shape": [1, 2], "datatype": "INT32", "parameters": {"binary_data_size": 8}}',
                more=', "outputs": [{"name": "O", "parameters": {"classification": 2}}], "parameters": '
                '{"sequence_id": 3, "sequence_start": true, "priority": 1, "a": 1.5, '
                '"binary_data_output": true}',
                tensors=bytes(8),
            ),
            _body(
                '{"name": "I", "shape": [2], "datatype": "INT32", "parameters": '
                '{"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 4}}'
            ),
        ),
    ),
    "json_written": Target(
        json_written,
        (),
        tuple(
            bytes([number]) + (b"\3\0\0\0a\xc3\xa9" if name == "BYTES" else bytes(range(64)))
            for number, name in enumerate(_NAMES)
        ),
    ),
}
