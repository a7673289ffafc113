"""Completion of a configuration, and its comparison with the model's file."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from app.core.errors import ErrorCode, InferError
from backends.openvino.backend import OpenVinoBackend
from tests.unit.backend_harness import Served
from tests.unit.backends.openvino.networks import model, parameter, parameters, result, save, sums

TENSORS = """
    input { name: "A" data_type: TYPE_FP32 dims: 4 } input { name: "B" data_type: TYPE_FP32 dims: 4 }
    output { name: "SUM" data_type: TYPE_FP32 dims: 4 }
"""


def completed(folder: Path, text: str = "", **settings: str) -> Any:
    return OpenVinoBackend.auto_complete(model(folder, text, **settings))


def dims(config: Any) -> list[list[int]]:
    return [list(tensor.dims) for tensor in (*config.input, *config.output)]


def load_error(folder: Path, text: str, **settings: str) -> InferError:
    with pytest.raises(InferError) as caught:
        Served(OpenVinoBackend, model(folder, text, **settings))
    return caught.value


def test_model_without_layout_is_completed_without_batching(tmp_path: Path) -> None:
    config = completed(sums(tmp_path, (2, 4), np.int64))
    assert (config.max_batch_size, config.WhichOneof("scheduling_choice")) == (0, None)
    assert [tensor.name for tensor in (*config.input, *config.output)] == ["A", "B", "SUM", "DOUBLE"]
    assert {tensor.data_type for tensor in (*config.input, *config.output)} == {8 + 1}  # TYPE_INT64
    assert dims(config) == [[2, 4]] * 4


def test_layouts_with_n_turn_batching_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = completed(sums(tmp_path, (1, 4), layout="NC"))
    assert (config.max_batch_size, config.WhichOneof("scheduling_choice")) == (4, "dynamic_batching")
    assert dims(config) == [[4]] * 4
    assert caplog.messages == [
        "autofilled max_batch_size to 4 for model 'm' since batching is supported but no max_batch_size is"
        " specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max"
        " batch size"
    ]


@pytest.mark.parametrize(
    ("default", "size", "scheduler"), [("1", 1, None), ("0", 1, None), ("9", 9, "dynamic_batching")]
)
def test_default_max_batch_size(tmp_path: Path, default: str, size: int, scheduler: str | None) -> None:
    config = completed(sums(tmp_path, layout="NC"), default_max_batch_size=default)
    assert (config.max_batch_size, config.WhichOneof("scheduling_choice")) == (size, scheduler)


def test_layouts_of_some_tensors_are_not_enough(tmp_path: Path) -> None:
    value = parameter("A", (1, 4), layout="NC")
    save(tmp_path, [value], [result("OUT", op.relu(value)), result("ALL", op.abs(value), "NC")])
    assert completed(tmp_path).max_batch_size == 0


def test_max_batch_size_of_the_user_stays_and_takes_the_first_dimension(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = completed(sums(tmp_path, (1, 4)), "max_batch_size: 3")
    assert (config.max_batch_size, dims(config)) == (3, [[4]] * 4)
    assert config.WhichOneof("scheduling_choice") is None
    assert caplog.record_tuples == [
        (
            "backends.openvino.model_io",
            logging.WARNING,
            "model layout for model m does not support batching while non-zero max_batch_size is specified",
        )
    ]


def test_one_variable_dimension_makes_all_dims_variable(tmp_path: Path) -> None:
    """Triton writes them so, and clients compare configurations; such a configuration loads here."""
    folder = sums(tmp_path, (-1, 4))
    config = completed(folder)
    assert dims(config) == [[-1, -1]] * 4
    whole = model(folder)
    whole.config.CopyFrom(config)
    Served(OpenVinoBackend, whole).close()


def test_declared_tensors_stay(tmp_path: Path) -> None:
    config = completed(sums(tmp_path, (2, 4)), 'input { name: "A" data_type: TYPE_FP16 dims: [ 2, -1 ] }')
    assert [(tensor.name, tensor.data_type) for tensor in config.input] == [("A", 10)]
    assert [tensor.name for tensor in config.output] == ["SUM", "DOUBLE"]


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.float64, "TYPE_FP64"), (ov.Type.bf16, "TYPE_BF16"), (ov.Type.u4, "u4")]
)
def test_unsupported_type_of_a_model_is_named(tmp_path: Path, dtype: Any, name: str) -> None:
    value = parameter("A", (1, 4), dtype)
    save(tmp_path, [value], [result("OUT", op.abs(value))])
    with pytest.raises(InferError) as caught:
        completed(tmp_path)
    assert caught.value.message == f"unsupported datatype {name} for input 'A' for model 'm'"


@pytest.mark.parametrize("kind", ["STRING", "FP64", "BF16"])
@pytest.mark.parametrize("direction", ["input", "output"])
def test_unsupported_type_of_a_configuration_is_named(tmp_path: Path, kind: str, direction: str) -> None:
    text = (
        TENSORS.replace("TYPE_FP32", f"TYPE_{kind}", 1)
        if direction == "input"
        else TENSORS.replace('SUM" data_type: TYPE_FP32', f'SUM" data_type: TYPE_{kind}')
    )
    error = load_error(sums(tmp_path), f"max_batch_size: 4 {text}")
    name = "A" if direction == "input" else "SUM"
    assert error.code == ErrorCode.INTERNAL
    assert error.message == f"unsupported datatype TYPE_{kind} for {direction} '{name}' for model 'm'"


def test_ragged_inputs_are_refused(tmp_path: Path) -> None:
    text = TENSORS.replace("dims: 4 }", "dims: -1 allow_ragged_batch: true }", 1)
    error = load_error(sums(tmp_path), f"max_batch_size: 4 {text}")
    assert error.message == "unable to load model 'm', ragged input 'A' is not supported by OpenVINO"


def test_number_of_inputs(tmp_path: Path) -> None:
    error = load_error(sums(tmp_path), 'input { name: "A" data_type: TYPE_FP32 dims: [ -1, 4 ] }')
    assert error.message == "unable to load model 'm', configuration expects 1 inputs, model provides 2"


def test_unknown_names(tmp_path: Path) -> None:
    sums(tmp_path)
    error = load_error(tmp_path, "max_batch_size: 4" + TENSORS.replace('"B"', '"C"'))
    assert error.message == "unexpected inference input 'C', allowed inputs are: A, B"
    error = load_error(tmp_path, "max_batch_size: 4" + TENSORS.replace('"SUM"', '"X"'))
    assert error.message == "unexpected inference output 'X', allowed outputs are: DOUBLE, SUM"


def test_dims_that_differ(tmp_path: Path) -> None:
    sums(tmp_path, (2, 4))
    error = load_error(tmp_path, TENSORS)
    assert error.message == (
        "model 'm', tensor 'A': the model expects 2 dimensions (shape [2,4]) but the model configuration"
        " specifies 1 dimensions (shape [4])"
    )
    error = load_error(tmp_path, "max_batch_size: 8" + TENSORS.replace("dims: 4", "dims: 5"))
    assert error.message == (
        "model 'm', tensor 'A': the model expects 2 dimensions (shape [2,4]) but the model configuration"
        " specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the"
        " explicit tensor shape, making complete shape [8,5])"
    )
    assert error.code == ErrorCode.INVALID_ARG


def test_outputs_that_do_not_follow_the_batch_size(tmp_path: Path) -> None:
    value = parameter("A", (1, 4))
    flat = op.reshape(value, op.constant(np.array([1, -1])), False)
    save(tmp_path, [value], [result("OUT", flat)])
    error = load_error(
        tmp_path,
        'max_batch_size: 8 input { name: "A" data_type: TYPE_FP32 dims: 4 }'
        ' output { name: "OUT" data_type: TYPE_FP32 dims: -1 }',
    )
    assert error.message == (
        "model 'm', tensor 'OUT': the model expects 2 dimensions (shape [1,32]) but the model configuration"
        " specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the"
        " explicit tensor shape, making complete shape [8,-1])"
    )


def test_reshaped_layers_take_positive_sizes(tmp_path: Path) -> None:
    text = """
        input { name: "A" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 0, 4 ] } }
        input { name: "B" data_type: TYPE_FP32 dims: 4 }
    """
    error = load_error(sums(tmp_path), text + parameters(RESHAPE_IO_LAYERS="yes"))
    assert (error.code, error.message) == (
        ErrorCode.INTERNAL,
        "openvino backend does not support dimensions values other than `-1` or positive integers",
    )
