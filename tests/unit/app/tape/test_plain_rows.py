"""Rows that are made at once: the same bytes as by way of `Taken`, or nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.core.errors import ErrorCode, Failure
from app.core.tape.redaction import Redaction
from app.core.tape.spec import TapeSpec, Treatment
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.tape.rows import PACKED_BYTES, encoded, plain_row
from app.tape.taken import Rules, Taken
from nereid_client.tape.records import MAX_HEAD

names = st.one_of(st.sampled_from(["x", "y", ""]), st.text(max_size=300))
unsigned = st.integers(0, 2**64)
data = st.one_of(st.binary(max_size=40), st.sampled_from([b"a" * PACKED_BYTES, b"b" * 300])).flatmap(
    lambda value: st.sampled_from([value, bytearray(value), memoryview(value)])
)
tensors = st.lists(
    st.builds(Tensor, names, st.sampled_from(["FP32", "BYTES"]), st.tuples(unsigned) | st.tuples(), data),
    max_size=4,
).map(tuple)
requests = st.builds(
    InferRequest,
    names,
    names,
    tensors,
    st.lists(st.builds(RequestedOutput, names), max_size=3).map(tuple),
    names,
    st.sampled_from([{}, {"a": 1}]),
    unsigned | names,
    st.booleans(),
    st.booleans(),
    unsigned,
    unsigned,
)
failures = st.sampled_from([None, None, None, Failure(ErrorCode.INTERNAL, "no")])
responses = st.builds(InferResponse, names, names, tensors, names, final=st.booleans(), failure=failures)
specs = st.builds(
    TapeSpec,
    rate=st.floats(0, 1),
    fields=st.dictionaries(st.sampled_from(["x", "y", "z"]), st.sampled_from(["keep", "size", "drop"])),
    replay=st.sampled_from(["allowed", "never"]),
)


@dataclass
class Row:
    """A row in both ways."""

    spec: TapeSpec
    request: Any
    response: Any
    moments: tuple[int, int, int] = (1, 2, 3)

    def at_once(self) -> bytes | None:
        rules = Rules("m", self.spec, Redaction(self.spec, b""))
        return plain_row(rules, "ab", 7, self.request, self.response, self.moments, "t")

    def by_taken(self) -> bytes:
        rules = Rules("m", self.spec, Redaction(self.spec, b""))
        taken = Taken(rules, self.request, self.moments[1], "t")
        taken.add(self.moments[2], self.response, self.request)
        taken.wall_ns, taken.number = self.moments[0], 7
        taken.reason, taken.probability = "rate", self.spec.rate or 0.0
        return b"".join(encoded(taken, "ab"))


ONE = Tensor("x", "INT32", (1, 2), b"12345678")


@given(specs, requests, responses, st.tuples(unsigned, unsigned, unsigned))
@example(
    TapeSpec(rate=0.1), InferRequest("m", "", (ONE,)), InferResponse("m", "1", (ONE,)), (2**40, 2**63 - 1, 0)
)
def test_a_row_has_the_bytes_of_the_other_way_or_is_left_to_it(
    spec: TapeSpec, request: InferRequest, response: InferResponse, moments: tuple[int, int, int]
) -> None:
    row = Row(spec, request, response, moments)
    found = outcome(row.at_once)
    assert found is None or found == outcome(row.by_taken)


def outcome(make: Callable[[], bytes | None]) -> object:
    """Return a row, or what kind of exception there is in its place."""
    try:
        return make()
    except Exception as error:
        return type(error)


def test_most_rows_are_made_at_once() -> None:
    text = Tensor("t", "BYTES", (1,), b"\1\0\0\0a")
    request = InferRequest("m", "2", (ONE, text), (RequestedOutput("x"),), "id", priority=3, timeout_us=10**6)
    row = Row(TapeSpec(rate=0.1), request, InferResponse("m", "2", (ONE,)), (10**18, 10**12, 10**6))
    assert row.at_once() == row.by_taken()


@pytest.mark.parametrize(
    ("changed", "response"),
    [
        ({"parameters": {"a": 1}}, {}),
        ({"regions": True}, {}),
        ({"inputs": (Tensor("x", "UINT8", (1,), bytes(PACKED_BYTES + 1)),)}, {}),
        ({}, {"failure": Failure(ErrorCode.INTERNAL, "no")}),
        ({}, {"final": False}),
    ],
)
def test_what_is_not_plain_is_left_to_the_other_way(
    changed: dict[str, Any], response: dict[str, Any]
) -> None:
    request = InferRequest(**{"model_name": "m", "model_version": "", "inputs": (ONE,)} | changed)
    assert Row(TapeSpec(rate=0.1), request, InferResponse("m", "1", (ONE,), **response)).at_once() is None


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "\ud800"},
        {"priority": 1 << 64},
        {"inputs": (Tensor("x", "UINT8", (1,), object()),)},
        {"inputs": (Tensor("x" * MAX_HEAD, "UINT8", (1,), b"1"),)},
    ],
)
def test_what_cannot_be_written_fails_in_both_ways(changed: dict[str, Any]) -> None:
    request = InferRequest(**{"model_name": "m", "model_version": "", "inputs": (ONE,)} | changed)
    row = Row(TapeSpec(rate=0.1), request, InferResponse("m", "1", (ONE,)))
    failed = outcome(row.at_once)
    assert isinstance(failed, type) and failed is outcome(row.by_taken)


def test_hashes_are_left_to_the_other_way() -> None:
    request, response = InferRequest("m", "", (ONE,)), InferResponse("m", "1", (ONE,))
    treatments: tuple[Treatment, ...] = ("hash", "drop", "keep", "size")
    for treatment in treatments:
        row = Row(TapeSpec(rate=0.1, fields={"x": treatment}), request, response)
        assert row.at_once() == (None if treatment == "hash" else row.by_taken())
