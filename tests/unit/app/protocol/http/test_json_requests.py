"""The compiled reader of inference requests: it reads what the reference reads, or nothing."""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.datatypes import DATATYPES
from app.core.errors import InferError
from app.core.tensors import RegionSlice
from app.protocol.http.compiled import JSON_TYPES
from app.protocol.http.v2 import HttpInfer, decode_infer

extension = pytest.importorskip("app.native.extension")
LIMIT = 1 << 12
MUTATIONS = b'[]{},:"\\.-+eE0159 \n\x00\xff\xc3\xa9tfn'


def compiled(body: bytes, json_end: int) -> HttpInfer | None:
    found: HttpInfer | None = extension.read_json(JSON_TYPES, "m", "1", memoryview(body), json_end, LIMIT)
    return found


def reference(body: bytes, json_end: int) -> HttpInfer | None:
    try:
        return decode_infer("m", "1", body, json_end, LIMIT)
    except InferError:
        return None


def plain(infer: HttpInfer) -> Any:
    """Return a request with the types of its values, but not with that of its data, which may be copied."""
    builtins = msgspec.to_builtins(infer)
    for tensor, given_input in zip(builtins["request"]["inputs"], infer.request.inputs, strict=True):
        data = given_input.data
        tensor["data"] = data if isinstance(data, RegionSlice) else bytes(data)
    return repr(builtins)


def check(body: bytes, json_end: int) -> bool:
    """Compare; return whether the compiled reader has read it."""
    found = compiled(body, json_end)
    if found is not None:
        expected = reference(body, json_end)
        assert expected is not None, body
        assert plain(found) == plain(expected), body
    return found is not None


NAMES = st.text(st.characters(codec="utf-8", exclude_characters='"\\', min_codepoint=32), max_size=4)
INTEGERS = st.integers(-(1 << 64), 1 << 64) | st.integers(-200, 300)
NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False)
    | INTEGERS
    | st.floats(width=32, allow_nan=False, allow_infinity=False)
)
PLACE = st.fixed_dictionaries(
    {"shared_memory_region": NAMES, "shared_memory_byte_size": st.integers(0, 1 << 63)},
    optional={"shared_memory_offset": st.integers(0, 1 << 64)},
)
PARAMETERS = st.dictionaries(
    st.sampled_from(
        ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"]
    )
    | st.sampled_from(["triton_x", "mine", "temperature"])
    | NAMES,
    st.booleans() | st.integers(-2, 1 << 64) | st.floats(allow_nan=False) | NAMES | st.none(),
    max_size=4,
)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Any]:
    datatype = draw(st.sampled_from([*DATATYPES, *DATATYPES, "FP31"]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = draw(st.integers(0, 6))
    for size in shape:
        count = size if count > 6 else count
    size = 1
    for dim in shape:
        size *= dim
    count = draw(st.sampled_from([size, size, size, count]))
    value = {"BYTES": NAMES, "BOOL": st.booleans()}.get(datatype, NUMBERS if "F" in datatype else INTEGERS)
    flat: list[Any] = draw(st.lists(value, min_size=count, max_size=count))
    if draw(st.booleans()) and count > 1:
        flat = [flat[:1], [flat[1:]]]
    entry: dict[str, Any] = {"name": draw(NAMES), "shape": shape, "datatype": datatype}
    source = draw(st.sampled_from(["data", "data", "binary", "place", "both", "none"]))
    if source in ("data", "both"):
        entry["data"] = flat
    if source in ("binary", "both"):
        entry["parameters"] = {"binary_data_size": draw(st.integers(0, 9))}
    if source == "place":
        entry["parameters"] = draw(PLACE)
    return dict(draw(st.permutations(list(entry.items()))))


OUTPUTS = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "parameters": PLACE
        | st.fixed_dictionaries(
            {}, optional={"binary_data": st.booleans(), "classification": st.integers(0, 3)}
        )
    },
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    document: dict[str, Any] = {"inputs": draw(st.lists(tensors(), max_size=3))}
    if draw(st.booleans()):
        document["id"] = draw(NAMES)
    if draw(st.booleans()):
        document["parameters"] = draw(PARAMETERS)
    if draw(st.booleans()):
        document["outputs"] = draw(st.lists(OUTPUTS, max_size=2))
    document = dict(draw(st.permutations(list(document.items()))))
    text = json.dumps(
        document, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1]))
    ).encode()
    sizes = [entry.get("parameters", {}).get("binary_data_size", 0) for entry in document["inputs"]]
    return text + bytes(range(sum(sizes) + draw(st.sampled_from([0, 0, 0, 1])))), len(text)


@given(bodies())
def test_requests_of_all_kinds(given_body: tuple[bytes, int]) -> None:
    check(*given_body)


@given(bodies(), st.randoms(use_true_random=False))
def test_requests_in_which_bytes_are_wrong(given_body: tuple[bytes, int], chance: random.Random) -> None:
    body, json_end = given_body
    text = bytearray(body[:json_end])
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(text))
        text[at : at + chance.choice((0, 0, 1, 2))] = bytes(chance.choices(MUTATIONS, k=chance.randint(0, 2)))
    check(bytes(text) + body[json_end:], len(text))


@given(
    NUMBERS | st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
)
def test_numbers_are_the_nearest(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    for datatype in ("FP64", "FP32", "INT64", "UINT64", "INT8"):
        body = f'{{"inputs":[{{"name":"x","shape":[1],"datatype":"{datatype}","data":[{text}]}}]}}'
        check(body.encode(), len(body))


def request(**more: Any) -> bytes:
    entry = {"name": "IN", "shape": [2, 2], "datatype": "FP32", "data": [0.1, 2, -3.5e-7, 1e300]}
    return json.dumps({"inputs": [entry | more]}).encode()


READ = {
    "numbers": request(),
    "nested": request(data=[[1, 2], [[3], 4]]),
    "strings": request(datatype="BYTES", data=["a", "", "é", "b c"]),
    "booleans": request(datatype="BOOL", data=[True, False, True, True]),
    "binary": request(),
    "data first": b'{"inputs":[{"data":[1,2],"datatype":"INT8","shape":[2],"name":"x"}],"id":"y"}',
    "parameters": json.dumps(
        {
            "parameters": {
                "sequence_id": "s",
                "sequence_start": True,
                "priority": 2,
                "temperature": 0.7,
                "top_k": -3,
            },
            "inputs": [{"name": "x", "shape": [1], "datatype": "UINT64", "data": [1 << 63]}],
            "outputs": [{"name": "a", "parameters": {"classification": 2}}, {"name": "b"}],
        }
    ).encode(),
}


@pytest.mark.parametrize("name", READ)
def test_what_clients_send_is_read(name: str) -> None:
    assert check(READ[name], len(READ[name]))


def test_long_requests_are_read_without_the_interpreter() -> None:
    values = [float(number) / 7 for number in range(5000)]
    body = request(shape=[5000], data=values)
    found = extension.read_json(JSON_TYPES, "m", "", memoryview(body), len(body), 1 << 20)
    assert found.request.inputs[0].array().tolist() == [
        msgspec.json.decode(json.dumps(v)) for v in values
    ] or (bytes(found.request.inputs[0].data) == bytes(decode_infer("m", "", body).request.inputs[0].data))
