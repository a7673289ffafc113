"""ModelStreamInfer: order, decoupled models, final responses, errors, cancellation."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.contract.conftest import Addresses
from tests.contract.drivers import GrpcDriver, Input, Output, Refusal, Response, StreamRequest, open_driver
from tests.contract.samples import check_simple, repeat, simple, simple_inputs, square
from tests.hints import tritons

ANONYMOUS = "[request id: <id_unknown>] "
UNKNOWN = "Request for unknown model: 'nobody' is not found"


@pytest.fixture(scope="module")
def asking_client(server: Addresses) -> Iterator[GrpcDriver]:
    """The client that can ask for the empty final response."""
    with open_driver("grpc", *server) as driver:
        assert isinstance(driver, GrpcDriver)
        yield driver


def values(responses: list[Response], request_id: str = "") -> list[int]:
    """OUT of the responses to one request."""
    return [int(r.array("OUT")[0]) for r in responses if r.id == request_id]


def test_one_response_a_value(grpc_client: GrpcDriver) -> None:
    responses = grpc_client.responses([repeat([4, 2, 0, 1])])
    assert values(responses) == [4, 2, 0, 1]
    assert [int(r.array("IDX")[0]) for r in responses] == [0, 1, 2, 3]
    assert {(r.model_name, r.model_version) for r in responses} == {("repeat_int32", "1")}


def test_many_responses(grpc_client: GrpcDriver) -> None:
    assert values(grpc_client.responses([repeat(range(500))])) == list(range(500))


def test_responses_of_one_request_share_its_id(grpc_client: GrpcDriver) -> None:
    responses = grpc_client.responses([repeat([1, 2], "a"), repeat([3], "b"), square(2, "c")])
    assert values(responses, "a") == [1, 2]
    assert values(responses, "b") == [3]
    assert values(responses, "c") == [2, 2]


def test_slow_and_fast_requests_interleave(grpc_client: GrpcDriver) -> None:
    responses = grpc_client.responses([repeat([1, 2, 3], "slow", delay_ms=150), repeat([7], "fast")])
    assert [r.id for r in responses].index("fast") < 3
    assert values(responses, "slow") == [1, 2, 3]


def test_response_before_the_last_is_not_final(grpc_client: GrpcDriver) -> None:
    responses = grpc_client.responses([repeat([1, 2, 3])])
    # The model ends with an empty final response, so none of these is it.
    assert [r.parameters["triton_final_response"] for r in responses] == [False] * 3


def test_no_values_no_responses(grpc_client: GrpcDriver) -> None:
    assert grpc_client.stream([repeat([])]) == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_empty_final_response_on_demand(asking_client: GrpcDriver, count: int) -> None:
    request = repeat(range(count), "id", enable_empty_final_response=True)
    *full, last = asking_client.responses([request])
    assert values(full, "id") == list(range(count))
    assert not last.names
    assert (last.id, last.model_name, last.model_version) == ("id", "repeat_int32", "")
    assert last.parameters == {"triton_final_response": True}


def test_ordinary_models_answer_in_order(grpc_client: GrpcDriver) -> None:
    responses = grpc_client.responses([simple(str(number)) for number in range(40)])
    assert [r.id for r in responses] == [str(number) for number in range(40)]
    assert all(r.parameters["triton_final_response"] is True for r in responses)


def test_requested_outputs_on_a_stream(grpc_client: GrpcDriver) -> None:
    plain, classes = grpc_client.responses(
        [simple("1", [Output("OUTPUT1")]), simple("2", [Output("OUTPUT0", classes=1)])]
    )
    assert plain.names == ["OUTPUT1"]
    assert classes.array("OUTPUT0").tolist() == [[b"16:15"]]


def test_several_models_on_one_stream(grpc_client: GrpcDriver) -> None:
    requests = [simple("s1"), repeat([5, 6], "r"), square(3, "q"), simple("s2")]
    responses = grpc_client.responses(requests)
    ordinary = [r.id for r in responses if r.id.startswith("s")]
    assert ordinary == ["s1", "s2"]
    assert (values(responses, "r"), values(responses, "q")) == ([5, 6], [3, 3, 3])
    expected = simple_inputs()
    for response in responses:
        if response.id.startswith("s"):
            np.testing.assert_array_equal(response.array("OUTPUT0"), expected[0].array + expected[1].array)


def bad_shape(model: str, name: str) -> StreamRequest:
    return StreamRequest(model, [Input(name, np.zeros(2, np.int32), "INT32")])


IN_BAND = {
    "unknown model": (StreamRequest("nobody", simple_inputs()), UNKNOWN),
    "unknown version": (
        StreamRequest("simple", simple_inputs(), options={"model_version": "9"}),
        "Request for unknown model: 'simple' version 9 is not found",
    ),
    "version that is no number": (
        StreamRequest("simple", simple_inputs(), options={"model_version": "x"}),
        "failed to get model version from specified version string 'x' (details: stol), "
        "version should be an integral value > 0",
    ),
    "misnamed input": (
        bad_shape("square_int32", "INPUT9"),
        "unexpected inference input 'INPUT9' for model 'square_int32'",
    ),
    "wrong shape without batching": (
        bad_shape("square_int32", "IN"),
        f"{ANONYMOUS}unexpected shape for input 'IN' for model 'square_int32'. Expected [1], got [2]. ",
    ),
    "unknown output": (
        simple(outputs=[Output("OUTPUT9")]),
        "unexpected inference output 'OUTPUT9' for model 'simple'",
    ),
    "batch too big": (
        StreamRequest("simple", simple_inputs(9)),
        f"{ANONYMOUS}inference request batch-size must be <= 8 for 'simple'",
    ),
}


@pytest.mark.parametrize(("request_", "text"), IN_BAND.values(), ids=IN_BAND.keys())
def test_errors_are_in_band_and_the_stream_goes_on(grpc_client: GrpcDriver, request_: Any, text: str) -> None:
    first, error, last = grpc_client.stream([simple("1"), request_, simple("3")])
    outcomes = [first, error, last]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    served = [outcome.id for outcome in outcomes if isinstance(outcome, Response)]
    assert [tritons(refusal.text) for refusal in refused] == [text.rstrip()]
    assert served == ["1", "3"]


def test_error_of_a_running_decoupled_model_is_in_band(grpc_client: GrpcDriver) -> None:
    broken = repeat([1, 2, 3], "bad")
    delay = Input("DELAY", np.zeros(1, np.uint32), "UINT32")
    broken = replace(broken, inputs=[broken.inputs[0], delay, *broken.inputs[2:]])
    outcomes = grpc_client.stream([broken, simple("good")])
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    assert [refusal.text for refusal in refused] == ["expected IN and DELAY of the same length, got 3 and 1"]
    assert [outcome.id for outcome in outcomes if isinstance(outcome, Response)] == ["good"]


def test_in_band_error_names_its_request(grpc_stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    (response,) = grpc_stub.ModelStreamInfer(iter([pb.ModelInferRequest(model_name="nobody", id="42")]))
    assert (response.error_message, response.infer_response.id) == (UNKNOWN, "42")


def test_stream_of_a_client_that_wants_status_codes(grpc_client: GrpcDriver) -> None:
    broken = repeat([1, 2], "bad")
    delay = Input("DELAY", np.zeros(1, np.uint32), "UINT32")
    broken = replace(broken, inputs=[broken.inputs[0], delay, *broken.inputs[2:]])
    outcomes = grpc_client.stream([broken], {"triton_grpc_error": "true"})
    assert outcomes[-1] == Refusal(
        "INVALID_ARGUMENT", "expected IN and DELAY of the same length, got 2 and 1"
    )
    check_simple(grpc_client)


def test_request_that_reaches_no_model_is_in_band_whatever_the_client_wants(grpc_client: GrpcDriver) -> None:
    requests = [StreamRequest("nobody", simple_inputs()), simple("next")]
    error, response = grpc_client.stream(requests, {"triton_grpc_error": "true"})
    assert error == Refusal("", UNKNOWN)
    assert isinstance(response, Response) and response.id == "next"


def test_stream_without_requests_ends(grpc_client: GrpcDriver) -> None:
    assert grpc_client.stream([]) == []


def endless(count: int) -> pb.ModelInferRequest:
    """A request for `count` responses, 20 ms apart."""
    request = pb.ModelInferRequest(model_name="repeat_int32")
    for name, datatype, array in (
        ("IN", "INT32", np.arange(count, dtype=np.int32)),
        ("DELAY", "UINT32", np.full(count, 20, np.uint32)),
        ("WAIT", "UINT32", np.zeros(1, np.uint32)),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def test_cancelling_a_stream(
    grpc_stub: service_pb2_grpc.GRPCInferenceServiceStub, grpc_client: GrpcDriver
) -> None:
    requests: SimpleQueue[Any] = SimpleQueue()
    requests.put(endless(1000))
    responses = grpc_stub.ModelStreamInfer(iter(requests.get, None))
    seen = list(itertools.islice(responses, 3))
    responses.cancel()
    requests.put(None)
    assert len(seen) == 3
    with pytest.raises(grpc.RpcError) as caught:
        list(responses)
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    # The model is free again well before the twenty seconds the request would have taken.
    assert values(grpc_client.responses([repeat([1, 2])])) == [1, 2]


def test_deadline_of_a_stream(
    grpc_stub: service_pb2_grpc.GRPCInferenceServiceStub, grpc_client: GrpcDriver
) -> None:
    requests: SimpleQueue[Any] = SimpleQueue()
    requests.put(endless(1000))
    with pytest.raises(grpc.RpcError) as caught:
        list(grpc_stub.ModelStreamInfer(iter(requests.get, None), timeout=0.5))
    requests.put(None)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    check_simple(grpc_client)
