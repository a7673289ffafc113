"""Of equal keys in the JSON of an inference request the first counts, as in rapidjson."""

from typing import Any

import pytest

from app.core.errors import InferError
from app.protocol.http import strict_json
from app.protocol.http.json_part import parse_header
from tests.hints import tritons
from tests.unit.app.protocol.http.http_documents import INT, decode

ENTRY = '"name":"I","shape":[2],"datatype":"INT32","data":[1,2]'
OTHER = '{"name":"J","shape":[1],"datatype":"INT64","data":[3]}'
ONE = '"inputs":[{' + ENTRY + "}]"
OPEN = '{"inputs":[{' + ENTRY
PLAIN = "{" + ONE + "}"
NAN = '"unknown":NaN'
"""Refused by the decoder of structs, and so read by the general parser."""

# The beginning of a document, a member that is ignored, and the rest.
DOUBLED = {
    "inputs": ("{" + ONE, f',"inputs":[{OTHER}]', "}"),
    "empty inputs": ("{" + ONE, ',"inputs":[]', "}"),
    "inputs of another type": ("{" + ONE, ',"inputs":5', "}"),
    "name": (OPEN, ',"name":"J"', "}]}"),
    "shape": (OPEN, ',"shape":[1,2]', "}]}"),
    "datatype": (OPEN, ',"datatype":"INT64"', "}]}"),
    "data": (OPEN, ',"data":[3,4]', "}]}"),
    "an escaped name": (OPEN, ',"d\\u0061ta" :[3,4]', "}]}"),
    "id": ('{"id":"a",' + ONE, ',"id":"b"', "}"),
    "outputs": ('{"outputs":[{"name":"O"}],' + ONE, ',"outputs":[{"name":"P"}]', "}"),
    "output": ('{"outputs":[{"name":"O"', ',"name":"P"', "}]," + ONE + "}"),
    "binary_data": (
        '{"outputs":[{"name":"O","parameters":{"binary_data":true',
        ',"binary_data":false',
        "}}]," + ONE + "}",
    ),
    "an output's parameters": (
        '{"outputs":[{"name":"O","parameters":{"classification":2}',
        ',"parameters":{"classification":3}',
        "}]," + ONE + "}",
    ),
    "a parameter": ('{"parameters":{"a":1', ',"a":2', "}," + ONE + "}"),
    "parameters": ('{"parameters":{"a":1}', ',"parameters":{"b":2}', "," + ONE + "}"),
    "a sequence": (
        '{"parameters":{"sequence_id":1,"sequence_start":true',
        ',"sequence_id":2',
        "}," + ONE + "}",
    ),
    "a shared memory region": (
        '{"inputs":[{"name":"I","shape":[2],"datatype":"INT32","parameters":{"shared_memory_region":"r"',
        ',"shared_memory_region":"s"',
        ',"shared_memory_byte_size":8}}]}',
    ),
    "beside long data": (
        '{"inputs":[{"name":"I","shape":[5000],"datatype":"INT32","data":[' + ",".join(["7"] * 5000) + "]",
        ',"datatype":"UINT32"',
        "}]}",
    ),
}


def with_nan(document: str) -> str:
    return "{" + NAN + "," + document[1:]


def read(document: str) -> Any:
    found = decode(document.encode())
    request = found.request
    inputs = [(tensor.name, tensor.datatype, tensor.shape, tensor.data) for tensor in request.inputs]
    return inputs, request.outputs, request.id, request.parameters, request.sequence_id, found.binary_default


@pytest.mark.parametrize("wrapped", [str, with_nan], ids=["fast", "general"])
@pytest.mark.parametrize("name", DOUBLED)
def test_the_first_of_equal_keys_counts(name: str, wrapped: Any) -> None:
    before, doubled, after = DOUBLED[name]
    assert read(wrapped(before + doubled + after)) == read(before + after)


@pytest.mark.parametrize("wrapped", [str, with_nan], ids=["fast", "general"])
def test_the_first_is_refused_where_only_the_second_would_do(wrapped: Any) -> None:
    with pytest.raises(InferError) as caught:
        decode(wrapped('{"inputs":5,' + PLAIN[1:]).encode())
    assert (caught.value.code, tritons(caught.value.message)) == (
        INT,
        "Unable to parse 'inputs': attempt to access JSON non-array as array",
    )


@pytest.mark.parametrize(
    "document",
    [
        PLAIN,
        '{"id":"a","parameters":{"sequence_id":1},"outputs":[{"name":"O","parameters":{"binary_data":true}}],'
        + PLAIN[1:],
    ],
)
def test_usual_documents_are_parsed_once(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(strict_json, "has_equal_keys", fail)
    parse_header(document.encode())


def test_the_data_of_long_tensors_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it looks as if it had members."""
    seen: list[bytes] = []

    def looked_at(data: bytes) -> bool:
        seen.append(data)
        return False

    monkeypatch.setattr(strict_json, "has_equal_keys", looked_at)
    texts = ",".join(['"a: b"'] * 5000)
    parse_header(b'{"inputs":[{"name":"I","shape":[5000],"datatype":"BYTES","data":[%s]}]}' % texts.encode())
    assert seen == [b'{"inputs":[{"name":"I","shape":[5000],"datatype":"BYTES","data":0}]}']
