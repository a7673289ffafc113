"""The compiled `Patterns` by itself; how it recognises requests is tested with the front."""

from typing import Any

import pytest

from app.core.tensors import InferRequest, InferResponse, Tensor
from app.protocol.http.json_tensors import encode_data

extension = pytest.importorskip("app.native.extension")

TENSOR = ("I", "INT32", (1,), 0, 0, None)
FIELDS: Any = ("m", "", (), "", {})
DATA = b"x" * 200


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("text", 1, (), (), FIELDS, None),
        (DATA, 201, (), (), FIELDS, None),
        (DATA, -1, (), (), FIELDS, None),
        (DATA, 200, (), (), ("m",), None),
        (DATA, 200, (), ((1,),), FIELDS, None),
        (DATA, 200, (), (TENSOR[:3],), FIELDS, None),
        (DATA, 200, (), (("I", "INT32", (1,), 0, 1, None),), FIELDS, None),
        (DATA, 200, (), (("I", "INT32", (1,), 1, 0, None),), FIELDS, None),
        (DATA, 200, (), (("I", "INT32", (1,), 0, 0, bytes),), FIELDS, None),
        (DATA, 200, ((1, 2, 0),), (TENSOR,), FIELDS, None),
        (DATA, 200, ((1, 2, 1),), (TENSOR,), FIELDS, None),
        (DATA, 200, ((2, 1, -1),), (), FIELDS, None),
        (DATA, 200, ((1, 2, -1), (3, 4, -1)), (), FIELDS, None),
        (DATA, 200, ((1, 3, -1), (2, 4, -1)), (), FIELDS, None),
        (DATA, 200, ((1, 201, -1),), (), FIELDS, None),
        (DATA, 200, ((1, 2),), (), FIELDS, None),
        (DATA, 200, tuple((n, n, -1) for n in range(10)), (), FIELDS, None),
    ],
)
def test_patterns_that_do_not_fit_together_are_refused(arguments: Any) -> None:
    patterns = extension.Patterns(Tensor, InferRequest, InferResponse, encode_data)
    with pytest.raises((TypeError, ValueError)):
        patterns.add(*arguments)


def test_requests_that_look_different_each_time_are_learned_a_few_times_only() -> None:
    patterns = extension.Patterns(Tensor, InferRequest, InferResponse, encode_data)
    wanted = [patterns.wants(DATA) for _ in range(100)]
    assert wanted == [False, *[True] * 32, *[False] * 67]
    assert not patterns.wants(b"short")


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError):
        extension.Patterns(int, InferRequest, InferResponse, encode_data)
    with pytest.raises(TypeError, match="has no slot 'name'"):
        extension.Patterns(type("Plain", (), {"name": ""}), InferRequest, InferResponse, encode_data)
    with pytest.raises(TypeError):
        extension.Patterns(1, 2, 3, 4)
    with pytest.raises(TypeError):
        extension.Patterns(Tensor, InferRequest, InferResponse, encode_data=encode_data)


def test_every_part_of_a_response_is_known() -> None:
    """One that was added might be lost otherwise."""
    assert Tensor.__struct_fields__ == ("name", "datatype", "shape", "data")
    known = {"model_name", "model_version", "outputs", "id", "parameters", "final", "failure"}
    assert set(InferResponse.__struct_fields__) - known == {"timestamps", "calls"}  # which no client sees
