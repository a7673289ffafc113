"""Completion of a configuration from a described signature, by Triton's rules."""

from collections.abc import Sequence

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from backends.tensorflow.completion import complete
from backends.tensorflow.signature import TfSignature, TfTensor
from tests.unit.backend_harness import config

Dims = Sequence[int] | None


def tensor(dims: Dims, kind: str = "TYPE_FP32") -> TfTensor:
    return TfTensor("t:0", kind, None if dims is None else tuple(dims))


def signature(x: Dims = (-1, 16), y: Dims = (-1, 4), **more: Dims) -> TfSignature:
    inputs = {"x": tensor(x), **{name: tensor(dims) for name, dims in more.items()}}
    return TfSignature(inputs, {"y": tensor(y, "TYPE_STRING")})


def completed(text: str = "", model: TfSignature | None = None, default: int = 4) -> mc.ModelConfig:
    return complete(config(f'name: "m" {text}'), model or signature(), default)


def shapes(found: mc.ModelConfig) -> dict[str, list[int]]:
    return {tensor.name: list(tensor.dims) for tensor in (*found.input, *found.output)}


def refusal(text: str, model: TfSignature, code: ErrorCode) -> str:
    with pytest.raises(InferError) as caught:
        completed(text, model)
    assert caught.value.code is code
    return caught.value.message


def test_everything_is_completed(caplog: pytest.LogCaptureFixture) -> None:
    found = completed()
    assert found == config(
        """
        name: "m" max_batch_size: 4 dynamic_batching { }
        input { name: "x" data_type: TYPE_FP32 dims: 16 }
        output { name: "y" data_type: TYPE_STRING dims: 4 }
        """
    )
    assert caplog.messages == [
        "autofilled max_batch_size to 4 for model 'm' since batching is supporrted but no max_batch_size is"
        " specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max"
        " batch size"
    ]


def test_model_of_a_fixed_first_dimension_does_not_batch() -> None:
    found = completed(model=signature(y=(8, 4)))
    assert found.max_batch_size == 0 and not found.HasField("dynamic_batching")
    assert shapes(found) == {"x": [-1, 16], "y": [8, 4]}


def test_default_batch_size_of_0_completes_whole_shapes() -> None:
    assert shapes(completed(default=0)) == {"x": [-1, 16], "y": [-1, 4]}


def test_configured_batch_size_is_kept() -> None:
    found = completed("max_batch_size: 8", default=0)
    assert found.max_batch_size == 8 and shapes(found) == {"x": [16], "y": [4]}


def test_scheduler_that_is_configured_stays() -> None:
    assert not completed("sequence_batching { }").HasField("dynamic_batching")
    assert not completed("max_batch_size: 1").HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("text", "batch", "expected"),
    [
        # One dimension less than the model's means batching, as many mean none.
        ('input { name: "x" dims: 16 }', 4, {"x": [16], "y": [4]}),
        ('input { name: "x" dims: [ -1, 16 ] }', 0, {"x": [-1, 16], "y": [-1, 4]}),
        ('output { name: "y" dims: [ -1, 4 ] }', 0, {"x": [-1, 16], "y": [-1, 4]}),
        # A declared tensor without dimensions speaks for batching, unless another decides.
        ('input { name: "x" }', 4, {"x": [16], "y": [4]}),
        ('input { name: "x" } output { name: "y" dims: [ -1, 4 ] }', 0, {"x": [-1, 16], "y": [-1, 4]}),
        ('input { name: "x" dims: [ -1, 16 ] } output { name: "y" }', 0, {"x": [-1, 16], "y": [-1, 4]}),
        # The shape that the model sees counts, not the client's.
        ('input { name: "x" dims: [ 4, 4 ] reshape { shape: 16 } }', 4, {"x": [4, 4], "y": [4]}),
        # A tensor that the model lacks says nothing; that it is missing is found at the load.
        ('input { name: "z" dims: 16 }', 0, {"z": [16], "x": [-1, 16], "y": [-1, 4]}),
    ],
)
def test_declared_tensors_say_whether_the_model_batches(
    text: str, batch: int, expected: dict[str, list[int]]
) -> None:
    found = completed(text)
    assert found.max_batch_size == batch
    assert shapes(found) == expected


def test_ragged_input_means_batching() -> None:
    found = completed('input { name: "x" dims: -1 allow_ragged_batch: true }', signature(x=(-1,)))
    assert found.max_batch_size == 4 and shapes(found) == {"x": [-1], "y": [4]}


def test_contradiction_of_declared_tensors() -> None:
    text = 'input { name: "x" dims: 16 } output { name: "y" dims: [ -1, 4 ] }'
    assert refusal(text, signature(), ErrorCode.INTERNAL) == (
        "unable to autofill for 'm', model tensor configurations are contradicting each other in terms of"
        " whether batching is supported"
    )


def test_batch_size_that_the_model_does_not_support() -> None:
    assert refusal("max_batch_size: 8", signature(x=(8, 16)), ErrorCode.INTERNAL) == (
        "unable to autofill for 'm', configuration specified max-batch 8 but model signature does not support"
        " batching"
    )


def test_tensor_without_a_name() -> None:
    message = refusal("input { dims: 16 }", signature(), ErrorCode.INVALID_ARG)
    assert message == "'name' is a required field for all inputs/outputs."


def test_batch_of_numbers_is_reshaped() -> None:
    found = completed(model=signature(x=(-1,)))
    assert shapes(found)["x"] == [1]
    assert found.input[0].HasField("reshape") and not found.input[0].reshape.shape


def test_scalar_is_completed_without_batching() -> None:
    found = completed(model=signature(rate=()))
    assert found.max_batch_size == 0
    assert shapes(found) == {"x": [-1, 16], "rate": [1], "y": [-1, 4]}
    assert not found.input[1].HasField("reshape")


@pytest.mark.parametrize(("text", "rate"), [("", None), ("max_batch_size: 8", ())])
def test_tensor_of_unknown_rank_must_be_declared(text: str, rate: Dims) -> None:
    assert refusal(text, signature(rate=rate), ErrorCode.INVALID_ARG) == (
        "Unable to autofill for 'm': the rank of model tensor 'rate' is 0 and dimensions are not defined"
    )


def test_declared_tensor_of_unknown_rank_is_kept() -> None:
    found = completed('input { name: "rate" data_type: TYPE_FP32 dims: 1 }', signature(rate=None))
    assert shapes(found)["rate"] == [1]


def test_declared_values_are_kept() -> None:
    found = completed('input { name: "x" data_type: TYPE_INT32 dims: 3 } max_batch_size: 2')
    assert found.input[0].data_type == mc.TYPE_INT32 and list(found.input[0].dims) == [3]


def test_declared_outputs_limit_the_outputs() -> None:
    model = signature()
    model = model._replace(outputs={**model.outputs, "z": tensor((-1, 2))})
    assert list(shapes(completed('output { name: "z" }', model))) == ["x", "z"]
    assert list(shapes(completed("", model))) == ["x", "y", "z"]


def test_inputs_that_the_server_makes_are_not_added() -> None:
    model = signature(start=(-1, 1), size=(-1, 1), state=(-1, 2))
    text = """
        sequence_batching {
            control_input {
                name: "start" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }
            }
            state { input_name: "state" output_name: "y" data_type: TYPE_FP32 dims: 2 }
        }
        batch_input { kind: BATCH_ELEMENT_COUNT target_name: "size" data_type: TYPE_FP32 source_input: "x" }
    """
    assert [tensor.name for tensor in completed(text, model).input] == ["x"]
