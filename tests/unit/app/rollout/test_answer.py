"""Answers beside what the configuration of the version promises."""

import re
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, Failure
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.rollout.answer import Answer
from app.routing.table import ModelState, VersionEntry

INPUT = 'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } '
OUTPUT = 'output { name: "y" data_type: TYPE_FP32 dims: [ -1, 2 ] } '
OTHER = 'output { name: "z" data_type: TYPE_STRING dims: [ -1 ] } '
DECOUPLED = "model_transaction_policy { decoupled: true } "
BROKEN = Failure(ErrorCode.INTERNAL, "broken")


def entry(config: str = INPUT + OUTPUT) -> VersionEntry:
    config_bytes = text_format.Parse(config, mc.ModelConfig()).SerializeToString()
    return VersionEntry("m", 2, ModelState.READY, config=config_bytes)


def request(*outputs: str) -> InferRequest:
    x = Tensor.from_array("x", np.zeros((1, 2), np.float32))
    return InferRequest("m", "", (x,), tuple(map(RequestedOutput, outputs)))


def tensor(name: str = "y", dtype: Any = np.float32, shape: tuple[int, ...] = (1, 5, 2)) -> Tensor:
    return Tensor.from_array(name, np.zeros(shape, dtype))


def part(*outputs: Tensor, final: bool = False, failure: Failure | None = None) -> InferResponse:
    return InferResponse("m", "2", outputs, final=final, failure=failure)


def last(*outputs: Tensor) -> InferResponse:
    return part(*outputs, final=True)


def judged(version: VersionEntry, asked: InferRequest, *responses: InferResponse) -> str:
    """Return why a request has failed; "" if it has not."""
    answer = Answer(asked)
    failures = [answer.add(version, response) for response in responses]
    failure = failures[-1]
    if failure is None:
        return ""
    assert failure.code is ErrorCode.INTERNAL
    return failure.message.removeprefix("model 'm' version 2: ")


def test_an_answer_as_configured_is_right() -> None:
    assert judged(entry(), request(), last(tensor())) == ""


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ((tensor(shape=(1, 5, 3)),), r"output 'y' is not in its configuration as FP32 \(1, 5, 3\)"),
        ((tensor(shape=(5, 2)),), r"output 'y' is not in its configuration as FP32 \(5, 2\)"),
        ((tensor(dtype=np.float64),), "output 'y' is not in its configuration as FP64 .*"),
        ((tensor("Y"),), "output 'Y' is not in its configuration as FP32 .*"),
        ((tensor(), tensor("Y")), "output 'Y' is not in its configuration as FP32 .*"),
        ((), "it answered without output 'y'"),
        ((tensor(), tensor()), "an output came twice: y, y"),
        ((tensor(shape=(3, 5, 2)),), "output 'y' has 3 rows, but the request has 1"),
        ((Tensor("y", "FP32", (1, 5, 2), bytes(8)),), r"output 'y' has 8 bytes, which is not \(1, 5, 2\)"),
    ],
)
def test_outputs_other_than_the_configuration_promises_are_a_failure(
    outputs: tuple[Tensor, ...], why: str
) -> None:
    assert re.fullmatch(why, judged(entry(), request(), last(*outputs)))


def test_outputs_that_were_asked_for_by_name_are_all_that_must_be_there() -> None:
    version = entry(INPUT + OUTPUT + OTHER)
    assert judged(version, request("y"), last(tensor())) == ""
    assert judged(version, request("z"), last(tensor())) == "it answered without output 'z'"
    assert judged(version, request(), last(tensor())) == "it answered without output 'z'"
    assert judged(version, request(), last()) == "it answered without output 'y', 'z'"


def test_a_model_without_a_batch_dimension_has_no_rows() -> None:
    version = entry(OUTPUT)
    assert judged(version, request(), last(tensor(shape=(5, 2)))) == ""


def test_memory_of_the_client_has_the_bytes() -> None:
    asked = InferRequest("m", "", (), regions=True)
    assert judged(entry(), asked, last(Tensor("y", "FP32", (1, 5, 2), b""))) == ""


def test_a_single_response_may_come_before_an_empty_final_one() -> None:
    answer = Answer(request())
    assert answer.add(entry(), part(tensor())) is None
    assert answer.add(entry(), last()) is None
    assert answer.outputs(last()) == (tensor(),)
    assert judged(entry(), request(), part(tensor()), last(tensor())) == "expected a single response, got 2"


def test_many_responses_of_a_version_that_may_have_one_are_not_kept() -> None:
    answer = Answer(request())
    for _ in range(10):
        answer.add(entry(), part(tensor()))
    assert len(answer.held) == 2


def test_a_stream_may_spread_its_outputs_over_responses() -> None:
    version = entry(DECOUPLED + OUTPUT + OTHER)
    y, z = tensor(shape=(5, 2)), tensor("z", np.object_, (1,))
    assert judged(version, request(), part(y), part(y, z), last()) == ""
    assert judged(version, request(), part(y), last(z)) == ""


@pytest.mark.parametrize(
    ("responses", "why"),
    [
        ((last(),), "it answered without output 'y'"),
        ((part(), last()), "it answered without output 'y'"),
        ((part(tensor(shape=(5, 3))), part(tensor(shape=(5, 2))), last()), "output 'y' is not in .*"),
        ((part(tensor(shape=(5, 2))), part(failure=BROKEN), last()), "broken"),
    ],
)
def test_a_stream_fails_by_any_response(responses: tuple[InferResponse, ...], why: str) -> None:
    assert re.fullmatch(why, judged(entry(DECOUPLED + OUTPUT), request(), *responses))


def test_a_failure_of_its_own_is_not_replaced() -> None:
    assert Answer(request()).add(entry(), part(final=True, failure=BROKEN)) is BROKEN
