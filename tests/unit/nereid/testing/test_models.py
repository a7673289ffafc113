"""Models in unit tests: `nereid.testing`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid.testing import InferError, load_model
from tests.unit.nereid.engine.repositories import DECOUPLED, FP32, add_ensemble, add_model

BATCHED = """
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
COUNT = """
n = len(requests)
return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r) + n)]) for r in requests]
"""
CALL = """
(request,) = requests
call = pb_utils.InferenceRequest(
    model_name='other', requested_output_names=['OUT'], inputs=request.inputs()
)
found = call.exec()
if found.has_error():
    raise pb_utils.TritonModelException(found.error().message())
return [pb_utils.InferenceResponse(found.output_tensors())]
"""


def test_a_directory_is_loaded_and_called(tmp_path: Path) -> None:
    group = "instance_group [ { kind: KIND_GPU count: 3 } ]\n"  # neither GPUs nor processes in a unit test
    add_model(tmp_path, "double", config=FP32 + group)
    before = list(sys.path)
    with load_model(tmp_path / "double") as model:
        assert model(IN=[1.0, 2.0])["OUT"].tolist() == [2, 4]
        assert model.config["input"][0]["name"] == "IN"
        (response,) = model.responses({"IN": [1.0]}, request_id="a")
        assert response.outputs["OUT"].tolist() == [2] and response.final and response.error is None
    assert sys.path == before


def test_errors_are_exceptions(tmp_path: Path) -> None:
    add_model(tmp_path, "broken", "raise ValueError('no')")
    add_model(tmp_path, "unloadable", initialize="raise OSError('gone')")
    with load_model(tmp_path / "broken") as model:
        with pytest.raises(InferError, match="ValueError: no") as raised:
            model(IN=[1.0])
        assert raised.value.code == "INTERNAL"
        with pytest.raises(InferError, match="IN"):
            model()
        assert "ValueError: no" in str(model.responses({"IN": [1.0]})[0].error)
    with pytest.raises(InferError, match="gone"), load_model(tmp_path / "unloadable"):
        pass


def test_several_requests_are_executed_at_once(tmp_path: Path) -> None:
    add_model(tmp_path, "counts", COUNT, config=BATCHED)
    add_model(tmp_path, "plain")
    with load_model(tmp_path / "counts") as model:
        found = model.batch([{"IN": [[1.0]]}, {"IN": [[2.0], [3.0]]}])
        assert [each["OUT"].tolist() for each in found if isinstance(each, dict)] == [[[3]], [[4], [5]]]
        assert model(IN=[[1.0]])["OUT"].tolist() == [[2]]  # the instance is free again
        with pytest.raises(InferError, match="5 rows are more than max_batch_size, 4"):
            model.batch([{"IN": [[1.0]]}] * 5)
    with load_model(tmp_path / "plain") as model, pytest.raises(InferError, match="max_batch_size, 0"):
        model.batch([{"IN": [1.0]}] * 2)


def test_each_request_of_a_batch_may_fail_alone(tmp_path: Path) -> None:
    execute = """
    return [
        pb_utils.InferenceResponse(error=pb_utils.TritonError('negative')) if _in(r).min() < 0
        else pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r))])
        for r in requests
    ]
    """
    add_model(tmp_path, "some", execute, config=BATCHED)
    with load_model(tmp_path / "some") as model:
        good, bad = model.batch([{"IN": [[1.0]]}, {"IN": [[-1.0]]}])
    assert isinstance(good, dict) and isinstance(bad, InferError) and bad.message == "negative"


def test_responses_of_a_decoupled_model_come_one_by_one(tmp_path: Path) -> None:
    execute = """
    sender = requests[0].get_response_sender()
    for value in _in(requests[0]):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([value]))]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    add_model(tmp_path, "each", execute, config=FP32 + DECOUPLED)
    with load_model(tmp_path / "each") as model:
        assert [part["OUT"].tolist() for part in model.stream({"IN": [1.0, 2.0]})] == [[1], [2]]


def test_calls_are_answered_by_functions_or_real_models(tmp_path: Path) -> None:
    add_model(tmp_path, "caller", CALL)
    add_model(tmp_path / "elsewhere", "other")
    seen: list[Any] = []

    def other(inputs: dict[str, Any]) -> dict[str, Any]:
        seen.append(inputs["IN"].tolist())
        if inputs["IN"].size == 0:
            raise ValueError("empty")
        return {"OUT": inputs["IN"] + np.float32(7)}

    with load_model(tmp_path / "caller", calls={"other": other}) as model:
        assert model(IN=[1.0])["OUT"].tolist() == [8]
        with pytest.raises(InferError, match="empty"):
            model(IN=np.zeros(0, np.float32))
    assert seen == [[1], []]
    with load_model(tmp_path / "caller", others=[tmp_path / "elsewhere" / "other"]) as model:
        assert model(IN=[1.0])["OUT"].tolist() == [2]
    with load_model(tmp_path / "caller") as model, pytest.raises(InferError, match="'other' is not found"):
        model(IN=[1.0])


def test_a_function_may_answer_a_decoupled_call(tmp_path: Path) -> None:
    execute = """
    (request,) = requests
    call = pb_utils.InferenceRequest(
        model_name='other', requested_output_names=['OUT'], inputs=request.inputs()
    )
    parts = [r.output_tensors()[0].as_numpy() for r in call.exec(decoupled=True) if r.output_tensors()]
    return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.concatenate(parts))])]
    """
    add_model(tmp_path, "caller", execute)

    def other(inputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"OUT": inputs["IN"]}
        yield {"OUT": inputs["IN"] * 2}

    with load_model(tmp_path / "caller", calls={"other": other}) as model:
        assert model(IN=[1.0])["OUT"].tolist() == [1, 2]


def test_a_class_is_loaded_with_a_configuration() -> None:
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args: dict[str, str]) -> None:
            self.name = args["model_name"]

        def execute(self, requests: list[Any]) -> list[Any]:
            tensors = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
            name = np.array([self.name], np.object_)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", t * 2), pb_utils.Tensor("NAME", name)])
                for t in tensors
            ]

    config = {
        "name": "mine",
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [
            {"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]},
            {"name": "NAME", "data_type": "TYPE_STRING", "dims": [1]},
        ],
    }
    with load_model(TritonPythonModel, config=config) as model:
        outputs = model(IN=[1.5])
    assert outputs["OUT"].tolist() == [3] and outputs["NAME"].tolist() == [b"mine"]


def test_an_ensemble_brings_what_it_calls(tmp_path: Path) -> None:
    add_model(tmp_path, "double")
    add_ensemble(tmp_path, "chain", "double", "double")
    with load_model(tmp_path / "chain") as model:
        assert model(IN=[1.0])["OUT"].tolist() == [4]
        with pytest.raises(InferError, match="no batches of its own"):
            model.batch([{"IN": [1.0]}])
