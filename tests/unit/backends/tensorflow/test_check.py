"""Comparison of a complete configuration with a described model, in Triton's words."""

import pytest

from app.core.errors import ErrorCode, InferError
from backends.tensorflow.check import check_graph, check_signature, check_types
from backends.tensorflow.signature import TfSignature, TfTensor
from tests.unit.backend_harness import config

SIGNATURE = TfSignature(
    {"x": TfTensor("x:0", "TYPE_FP32", (-1, 16)), "any": TfTensor("any:0", "TYPE_INT32", None)},
    {"y": TfTensor("y:0", "TYPE_FP32", (-1, -1)), "z": TfTensor("z:0", "TYPE_STRING", (-1, 2))},
)
GOOD = """
    name: "m" max_batch_size: 8
    input { name: "x" data_type: TYPE_FP32 dims: 16 }
    input { name: "any" data_type: TYPE_INT32 dims: 3 }
    output { name: "y" data_type: TYPE_FP32 dims: -1 }
"""
START = """
    sequence_batching {
        control_input { name: "%s" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
    }
"""


def refusal(text: str, signature: TfSignature = SIGNATURE) -> InferError:
    with pytest.raises(InferError) as caught:
        check_signature(config(text), signature)
    return caught.value


def test_fitting_configuration_passes() -> None:
    check_signature(config(GOOD), SIGNATURE)
    check_types(config(GOOD))


@pytest.mark.parametrize(
    ("found", "replaced", "message"),
    [
        ('"any"', '"other"', "unexpected inference input 'other', allowed inputs are: any, x"),
        ('"y"', '"other"', "unexpected inference output 'other', allowed outputs are: y, z"),
        (
            "dims: 16",
            "dims: 8",
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,16]) but the model"
            " configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > 0"
            " followed by the explicit tensor shape, making complete shape [-1,8])",
        ),
        (
            "dims: -1",
            "dims: 4",
            "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,-1]) but the model"
            " configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > 0"
            " followed by the explicit tensor shape, making complete shape [-1,4])",
        ),
        (
            "max_batch_size: 8",
            "",
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,16]) but the model"
            " configuration specifies 1 dimensions (shape [16])",
        ),
        (
            "TYPE_FP32 dims: 16",
            "TYPE_INT8 dims: 16",
            "unable to load model 'm', configuration expects datatype TYPE_INT8 for input 'x', model provides"
            " TYPE_FP32",
        ),
        (
            'input { name: "any" data_type: TYPE_INT32 dims: 3 }',
            "",
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            "dims: 16",
            "dims: 16 allow_ragged_batch: true",
            "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged"
            " input 'x', model provides [-1,16]",
        ),
    ],
)
def test_difference_is_told(found: str, replaced: str, message: str) -> None:
    error = refusal(GOOD.replace(found, replaced))
    assert (error.code, error.message) == (ErrorCode.INVALID_ARG, message)


def test_fixed_first_dimension_is_told_to_a_model_that_batches() -> None:
    fixed = SIGNATURE._replace(outputs={"y": TfTensor("y:0", "TYPE_FP32", (8, -1))})
    assert refusal(GOOD, fixed).message == (
        "model 'm', tensor 'y': for the model to support batching the shape should have at least 1 dimension"
        " and the first dimension must be -1; but shape expected by the model is [8,-1]"
    )


def test_scalar_is_declared_as_one_element() -> None:
    scalars = TfSignature({"x": TfTensor("x:0", "TYPE_FP32", ())}, {"y": TfTensor("y:0", "TYPE_FP32", ())})
    text = """
        name: "m" input { name: "x" data_type: TYPE_FP32 dims: 1 }
        output { name: "y" data_type: TYPE_FP32 dims: %d }
    """
    check_signature(config(text % 1), scalars)
    assert "expects 0 dimensions (shape []) but" in refusal(text % 2, scalars).message


@pytest.mark.parametrize(
    ("start", "code", "message"),
    [
        (
            None,
            ErrorCode.INTERNAL,
            "configuration specified sequence control 'start', but model does not provide that input",
        ),
        (
            TfTensor("s:0", "TYPE_INT32", (-1, 2)),
            ErrorCode.INVALID_ARG,
            "unable to load model 'm', sequence control 'start': model 'm', tensor 'start': the model"
            " expects 2 dimensions (shape [-1,2]) but the model configuration specifies 2 dimensions (an"
            " initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape,"
            " making complete shape [-1,1])",
        ),
        (
            TfTensor("s:0", "TYPE_FP32", (-1, 1)),
            ErrorCode.INVALID_ARG,
            "unable to load model 'm', sequence control 'start': the model expects TYPE_FP32 but the model"
            " configuration specifies data-type TYPE_INT32",
        ),
    ],
)
def test_control_input_is_checked(start: TfTensor | None, code: ErrorCode, message: str) -> None:
    inputs = {**SIGNATURE.inputs, **({"start": start} if start else {})}
    error = refusal(GOOD + START % "start", SIGNATURE._replace(inputs=inputs))
    assert (error.code, error.message) == (code, message)


def test_control_input_counts() -> None:
    inputs = {**SIGNATURE.inputs, "start": TfTensor("s:0", "TYPE_INT32", (-1, 1))}
    check_signature(config(GOOD + START % "start"), SIGNATURE._replace(inputs=inputs))


def test_type_that_tensorflow_does_not_have() -> None:
    with pytest.raises(InferError) as caught:
        check_types(config(GOOD.replace("TYPE_FP32 dims: 16", "TYPE_BF16 dims: 16")))
    assert caught.value.message == "unsupported datatype 'TYPE_BF16' for tensor 'x' for model 'm'"


def test_graph_has_names_alone() -> None:
    check_graph(config(GOOD), {"x", "any"}, {"y", "add"})
    check_graph(config(GOOD.replace('"y"', '"add:1"')), {"x", "any", "more"}, {"add"})


@pytest.mark.parametrize("missing", ["output", "input"])
def test_graph_needs_declared_tensors(missing: str) -> None:
    declared = config(GOOD)
    declared.ClearField(missing)
    with pytest.raises(InferError) as caught:
        check_graph(declared, {"x", "any"}, {"y"})
    assert "a GraphDef does not say which they are. It has the placeholders any, x" in caught.value.message


@pytest.mark.parametrize(
    ("placeholders", "text", "message"),
    [
        ({"x"}, GOOD, "unable to load model 'm', configuration expects 2 inputs, model provides at most 1"),
        ({"x", "a"}, GOOD, "unexpected inference input 'any', allowed inputs are: a, x"),
        (
            {"x", "any"},
            GOOD.replace('"y"', '"z"'),
            "unexpected inference output 'z', allowed outputs are: add, y",
        ),
        (
            {"x", "any"},
            GOOD + START % "start",
            "configuration specified sequence control 'start', but model does not provide that input",
        ),
    ],
)
def test_operation_that_a_graph_lacks(placeholders: set[str], text: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        check_graph(config(text), placeholders, {"y", "add"})
    assert caught.value.message == message
