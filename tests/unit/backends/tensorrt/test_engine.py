"""What an engine says, against what a configuration says."""

import pytest

from app.core.errors import ErrorCode, InferError
from backends.tensorrt.engine import EngineIO, check, complete, read_io
from backends.tensorrt.profiles import Profile, Range, choose, profiles_of
from tests.unit.backend_harness import config
from tests.unit.backends.tensorrt import fake_tensorrt as trt
from tests.unit.backends.tensorrt.fake_tensorrt import Io, TensorIOMode

INPUT, OUTPUT = TensorIOMode.INPUT, TensorIOMode.OUTPUT
WHOLE = """
    name: "m" max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: 3 } output { name: "Y" data_type: TYPE_FP32 dims: 3 }
"""


def io_of(**tensors: Io) -> EngineIO:
    return read_io(trt.ICudaEngine(tensors))


def fixed(shape: tuple[int, ...] = (4, 3)) -> EngineIO:
    return io_of(X=Io(INPUT, shape, [(shape,) * 3]), Y=Io(OUTPUT, shape))


def shaped() -> EngineIO:
    """A reshape: S says the shape of Y."""
    bounds = [((2,),) * 3]
    return io_of(
        X=Io(INPUT, (12,), [((12,),) * 3]),
        S=Io(
            INPUT,
            (2,),
            bounds,
            trt.DataType.INT32,
            location=trt.TensorLocation.HOST,
            values=((1, 1), (3, 4), (12, 12)),
        ),
        Y=Io(OUTPUT, (-1, -1)),
    )


def test_an_engine_completes_an_empty_configuration() -> None:
    found = complete(config('name: "m"'), read_io(trt.add_one(high=8)))
    assert found == config(WHOLE + "dynamic_batching {}")


def test_completion_keeps_what_is_set() -> None:
    text = 'name: "m" max_batch_size: 4 sequence_batching {} input { name: "X" dims: 3 }'
    found = complete(config(text), read_io(trt.add_one(high=8)))
    assert found.max_batch_size == 4
    assert not found.HasField("dynamic_batching")
    assert [(tensor.name, tensor.data_type) for tensor in found.input] == [("X", 11)]
    assert [(tensor.name, list(tensor.dims)) for tensor in found.output] == [("Y", [3])]


def test_an_engine_of_fixed_shapes_does_not_batch() -> None:
    found = complete(config('name: "m"'), fixed())
    assert (found.max_batch_size, list(found.input[0].dims), list(found.output[0].dims)) == (
        0,
        [4, 3],
        [4, 3],
    )


def test_whole_dims_turn_batching_off() -> None:
    found = complete(config('name: "m" input { name: "X" dims: [-1, 3] }'), read_io(trt.add_one()))
    assert (found.max_batch_size, list(found.output[0].dims)) == (0, [-1, 3])


def test_input_without_further_dimensions_becomes_a_reshape() -> None:
    engine = io_of(X=Io(INPUT, (-1,), [((1,), (2,), (4,))]), Y=Io(OUTPUT, (-1,)))
    found = complete(config('name: "m"'), engine)
    assert list(found.input[0].dims) == [1]
    assert found.input[0].HasField("reshape") and not found.input[0].reshape.shape


def test_the_largest_batch_is_that_of_the_profiles_in_use() -> None:
    io = read_io(trt.add_one(high=8, profiles=3))
    group = 'name: "m" instance_group {{ profile: [{}] }}'
    assert complete(config('name: "m"'), io).max_batch_size == 8
    assert complete(config(group.format("'0', '2'")), io).max_batch_size == 32
    with pytest.raises(InferError, match="index range 0-2"):
        complete(config(group.format("'3'")), io)
    with pytest.raises(InferError, match="unable to parse 'big'"):
        complete(config(group.format("'big'")), io)


def test_controls_and_states_are_no_inputs() -> None:
    text = """
        name: "m" sequence_batching {
          control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
          state { input_name: "X" output_name: "Y" }
        }
    """
    bounds = [((1, 1), (2, 1), (4, 1))]
    io = io_of(
        X=Io(INPUT, (-1, 3), [((1, 3), (2, 3), (4, 3))]),
        Z=Io(INPUT, (-1, 1), bounds),
        START=Io(INPUT, (-1, 1), bounds),
        Y=Io(OUTPUT, (-1, 3)),
        W=Io(OUTPUT, (-1, 3)),
    )
    found = complete(config(text), io)
    assert [tensor.name for tensor in found.input] == ["Z"]
    assert [tensor.name for tensor in found.output] == ["W"]
    check(found, io)


def test_a_shape_tensor_is_marked() -> None:
    found = complete(config('name: "m"'), shaped())
    assert [(tensor.name, tensor.is_shape_tensor) for tensor in found.input] == [("X", False), ("S", True)]
    assert list(found.input[1].dims) == [2]
    check(found, shaped())


@pytest.mark.parametrize(
    ("text", "io", "code", "message"),
    [
        (
            'name: "m" max_batch_size: 9',
            read_io(trt.add_one(high=8)),
            ErrorCode.INTERNAL,
            "autofill failed for model 'm': configuration specified max-batch 9 but TensorRT engine only"
            " supports max-batch 8",
        ),
        (
            'name: "m" input { name: "X" dims: 3 }',
            fixed(),
            ErrorCode.INTERNAL,
            "autofill failed for model 'm': model tensor shape configuration hints for dynamic batching but"
            " the underlying engine doesn't support batching.",
        ),
        (
            'name: "m" input { name: "X" dims: 3 } output { name: "Y" dims: [-1, 3] }',
            read_io(trt.add_one()),
            ErrorCode.INTERNAL,
            "unable to autofill for 'm', model tensor configurations are contradicting each other in terms of"
            " whether batching is supported",
        ),
        (
            'name: "m" input { name: "U" }',
            fixed(),
            ErrorCode.INVALID_ARG,
            "unexpected inference input 'U', allowed inputs are: X",
        ),
        (
            'name: "m" input { name: "X" dims: [4, 3] is_shape_tensor: true }',
            fixed(),
            ErrorCode.INVALID_ARG,
            "'X' is incorrectly specified as a shape tensor.",
        ),
        (
            'name: "m" input { name: "S" dims: 2 }',
            shaped(),
            ErrorCode.INVALID_ARG,
            "'S' is incorrectly specified as an execution tensor.",
        ),
    ],
)
def test_contradictions(text: str, io: EngineIO, code: ErrorCode, message: str) -> None:
    with pytest.raises(InferError) as caught:
        complete(config(text), io)
    assert (caught.value.code, caught.value.message) == (code, message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "TYPE_FP32",
            "TYPE_FP16",
            "unexpected datatype TYPE_FP32 for inference input 'X', expecting TYPE_FP16 for m",
        ),
        (
            "dims: 3 }",
            "dims: 4 }",
            "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,3]) but the model configuration"
            " specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the"
            " explicit tensor shape, making complete shape [-1,4])",
        ),
        (
            "max_batch_size: 8",
            "",
            "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,3]) but the model configuration"
            " specifies 1 dimensions (shape [3])",
        ),
        ('"Y"', '"V"', "unexpected inference output 'V', allowed outputs are: Y"),
        (
            'output { name: "Y" data_type: TYPE_FP32 dims: 3 }',
            "",
            "expected configuration for output 'Y' for m",
        ),
        (
            "dims: 3 } output",
            'dims: 3 } input { name: "Z" } output',
            "unable to load model 'm', configuration expects 2 inputs, model provides at most 1",
        ),
        (
            "dims: 3 } output",
            "dims: 3 is_shape_tensor: true } output",
            "input 'X' for model 'm' is incorrectly marked as a shape tensor in the model configuration.",
        ),
    ],
)
def test_a_configuration_that_does_not_fit(old: str, new: str, message: str) -> None:
    io = read_io(trt.add_one())
    check(config(WHOLE), io)
    with pytest.raises(InferError) as caught:
        check(config(WHOLE.replace(old, new, 1)), io)
    assert caught.value.message == message


def test_ragged_inputs_are_flat() -> None:
    ragged = WHOLE.replace("dims: 3 } output", "dims: -1 allow_ragged_batch: true } output")
    flat = io_of(X=Io(INPUT, (-1,), [((1,), (2,), (64,))]), Y=Io(OUTPUT, (-1, 3)))
    check(config(ragged), flat)
    with pytest.raises(InferError, match=r"to support ragged input, the engine shape is: \[-1,3\]"):
        check(config(ragged), read_io(trt.add_one()))


def test_a_shape_tensor_needs_its_mark_and_no_batching() -> None:
    text = """
        name: "m" input { name: "X" data_type: TYPE_FP32 dims: 12 }
        input { name: "S" data_type: TYPE_INT32 dims: 2 is_shape_tensor: true }
        output { name: "Y" data_type: TYPE_FP32 dims: [-1, -1] }
    """
    check(config(text), shaped())
    with pytest.raises(InferError, match="doesn't mark it as a shape tensor"):
        check(config(text.replace("is_shape_tensor: true", "")), shaped())
    with pytest.raises(InferError, match="not supported with max_batch_size above 0"):
        check(config("max_batch_size: 2" + text.replace("dims: 12", "reshape {} dims: 1")), shaped())


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Io(INPUT, (1,), dtype=trt.DataType.FP8), "unsupported TensorRT data type FP8 for tensor 'X'"),
        (Io(INPUT, (1,), layout=trt.TensorFormat.CHW32), "tensor 'X' has the TensorRT format CHW32"),
    ],
)
def test_tensors_that_cannot_be_served(tensor: Io, message: str) -> None:
    with pytest.raises(InferError, match=message):
        io_of(X=tensor)


def test_the_profile_nearest_to_the_batch() -> None:
    io = read_io(trt.add_one(best=2, high=8, profiles=3))
    profiles = profiles_of(["0", "1", "2", "1"], io.profiles, "m")
    assert [profile.number for profile in profiles] == [0, 1, 2]
    chosen = [choose(profiles, {"X": (rows, 3)}, {}).number for rows in (1, 2, 4, 7, 9, 17)]
    assert chosen == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("shape", "details"),
    [
        ((9, 3), "the shape of dimension 0 to be between 1 and 8 but received 9"),
        ((2, 4), "the shape of dimension 1 to be between 3 and 3 but received 4"),
        ((2,), "2 dimensions but received 1 dimensions"),
    ],
)
def test_shapes_that_no_profile_allows(shape: tuple[int, ...], details: str) -> None:
    with pytest.raises(InferError) as caught:
        choose(read_io(trt.add_one()).profiles, {"X": shape}, {})
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        f"request specifies invalid shape for input 'X'. Error details: model expected {details}"
    )


def test_values_that_no_profile_allows() -> None:
    profiles = shaped().profiles
    shapes = {"X": (12,), "S": (2,)}
    assert choose(profiles, shapes, {"S": (3, 4)}).number == 0
    with pytest.raises(InferError, match="tensor 'S': expected the value at index 1 to be between 1 and 12"):
        choose(profiles, shapes, {"S": (3, 13)})


def test_inputs_that_no_profile_allows_together() -> None:
    small, large = Range((1,), (1,), (4,)), Range((5,), (5,), (8,))
    profiles = [Profile(0, {"A": small, "B": small}, {}), Profile(1, {"A": large, "B": large}, {})]
    with pytest.raises(InferError, match="request specifies invalid shape for input 'B'"):
        choose(profiles, {"A": (2,), "B": (6,)}, {})
