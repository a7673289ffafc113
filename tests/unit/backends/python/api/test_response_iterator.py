"""The iterator over the responses of a call of a Python model."""

import numpy as np
import pytest

from app.core.tensors import InferResponse, Tensor
from backends.python.api import calls
from backends.python.api.calls import ResponseIterator
from backends.python.api.errors import TritonModelException


def three() -> ResponseIterator:
    """Return an iterator over three responses, with the values 0 and 1 and the last one empty."""
    responses = ResponseIterator()
    for value in range(2):
        output = Tensor.from_array("OUT", np.array([value], np.int32))
        responses.receive(InferResponse("m", "1", (output,), final=False))
    responses.receive(InferResponse("m", "1"))
    return responses


def outputs(responses: ResponseIterator) -> list[list[int]]:
    return [[int(each.as_numpy()[0]) for each in response.output_tensors()] for response in responses]


def test_a_further_loop_begins_again() -> None:
    responses = three()
    assert next(responses).output_tensors()[0].as_numpy() == [0]
    assert outputs(responses) == [[1], []]
    with pytest.raises(StopIteration):
        next(responses)
    assert outputs(responses) == outputs(responses) == [[0], [1], []]


def test_responses_of_many_bytes_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "KEPT_BYTES", 7)
    responses = three()
    assert outputs(responses) == [[0], [1], []]
    assert not responses._kept
    with pytest.raises(TritonModelException, match="of more than 7 bytes, and can be read only once"):
        iter(responses)
