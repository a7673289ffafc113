"""Configurations that cannot be served, and Triton's words for each."""

import pytest

from app.core.errors import ErrorCode, InferError
from backends.registry.configuration import normalise, validate
from tests.unit.backend_harness import config as parse

BASE = 'name: "m" backend: "python" max_batch_size: 8 '
IO = """
    input { name: "A" data_type: TYPE_FP32 dims: 16 }
    output { name: "B" data_type: TYPE_FP32 dims: 16 }
"""


def refusal(text: str, gpus: tuple[int, ...] = ()) -> str:
    with pytest.raises(InferError) as caught:
        validate(normalise(parse(text), gpus), gpus)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        BASE + IO,
        BASE
        + IO
        + "dynamic_batching { preferred_batch_size: [ 4, 8 ] priority_levels: 2 default_priority_level: 2 }",
        BASE + IO + "sequence_batching { direct { minimum_slot_utilization: 1.0 } }",
        BASE
        + 'input { name: "A" data_type: TYPE_FP32 dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] } }',
        BASE + 'input { name: "A" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }',
        'name: "m" backend: "mine" platform: "anything"' + IO,
        'name: "m" backend: "onnxruntime" platform: "onnxruntime_onnx"',
        BASE
        + IO
        + 'batch_input { kind: BATCH_ITEM_SHAPE target_name: "T" data_type: TYPE_INT32 source_input: "A" }',
    ],
)
def test_good_configurations(text: str) -> None:
    validate(normalise(parse(text)))


IDENTITY = [
    ('backend: "python"', "model configuration must specify 'name'"),
    ('name: "m"', "unexpected platform type '' for m"),
    ('name: "m" platform: "caffe"', "unexpected platform type 'caffe' for m"),
    (
        'name: "m" platform: "ensemble" backend: "python"',
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    ),
    (
        'name: "m" platform: "pytorch_libtorch" backend: "onnxruntime"',
        "unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime",
    ),
    ('name: "m" backend: "python" max_batch_size: -1', "'max_batch_size' must be non-negative value for m"),
    (
        'name: "m" platform: "ensemble"',
        "ensemble scheduling must be set for ensemble m whose platform is ensemble",
    ),
]

TENSORS = [
    ("input { data_type: TYPE_FP32 dims: 1 }", "model input must specify 'name' for m"),
    ('output { name: "B" dims: 1 }', "model output 'B' must specify 'data_type' for m"),
    ('input { name: "A" data_type: TYPE_FP32 }', "model input 'A' must specify 'dims' for m"),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: 0 }',
        "model input 'A' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    ),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: -2 }',
        "model input 'A' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    ),
    (
        'output { name: "B" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 0 ] } }',
        "model output 'B' reshape dimensions must be integer >= 1, or -1 to indicate a "
        "variable-size dimension for m",
    ),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 3 ] } }',
        "model input 'A' has different size for dims and reshape for m",
    ),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: 4 reshape { shape: [ -1 ] } }',
        "model input 'A' has different size for dims and reshape for m",
    ),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: 4 reshape { shape: [] } }',
        "model input 'A' has different size for dims and reshape for m",
    ),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: [ 2, -1 ] reshape { shape: [ -1, 2 ] } }',
        "model input 'A' has different size for dims and reshape for m",
    ),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: [ -1 ] } }',
        "model input 'A' has different number of variable-size dimensions for dims and reshape for m",
    ),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: [ 4294967296, 4294967296 ] '
        "reshape { shape: [ 4294967296, 4294967296 ] } }",
        "element count for tensor 'A dims' exceeds maximum size of 9223372036854775807 for m",
    ),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: 3 format: FORMAT_NCHW }',
        "model input NHWC/NCHW require 3 dims for m",
    ),
    (
        'input { name: "A" data_type: TYPE_FP32 dims: 3 is_shape_tensor: true }',
        "shape tensors are only supported for TensorRT platform for m",
    ),
    (
        'output { name: "A" data_type: TYPE_FP32 dims: 3 is_non_linear_format_io: true }',
        "Non-linear IO format is only supported for the TensorRT platform for m",
    ),
]

BATCH_IO = [
    (
        'batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_INT32 source_input: [ "A", "A" ] }',
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 2 for m",
    ),
    (
        'batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_INT64 source_input: "A" }',
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m",
    ),
    (
        'batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 source_input: "X" }',
        "unknown source input name 'X' for m",
    ),
    ("batch_input { kind: 99 }", "unknown batch input kind '99' for m"),
    (
        'batch_output { target_name: "X" source_input: "A" }',
        "unknown target output name 'X' for m",
    ),
    (
        'batch_output { target_name: [ "B", "B" ] source_input: "A" }',
        "target output name 'B' can only be specified once for m",
    ),
    (
        "batch_output { }",
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m",
    ),
]

DYNAMIC = [
    ("preferred_batch_size: 0", "dynamic batching preferred size must be positive for m"),
    ("preferred_batch_size: 9", "dynamic batching preferred size must be <= max batch size for m"),
    ("priority_levels: 3", "default priority level must be in range [1, 3] for m"),
    ("priority_levels: 3 default_priority_level: 4", "default priority level must be in range [1, 3] for m"),
    (
        "priority_levels: 3 default_priority_level: 1 priority_queue_policy { key: 4 value {} }",
        "priority queue policy must have priority level in range [1, 3] for m",
    ),
    (
        "priority_levels: 2 default_priority_level: 1 preserve_ordering: true",
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        "preserve_ordering: true default_queue_policy { timeout_action: DELAY "
        "default_timeout_microseconds: 1 }",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        "preserve_ordering: true priority_levels: 1 default_priority_level: 1 priority_queue_policy "
        "{ key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } }",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
]

START = "control { kind: CONTROL_SEQUENCE_START "
SEQUENCE = [
    ("control_input { }", "sequence batching control tensor must have a name for m"),
    (
        'control_input { name: "S" } control_input { name: "S" }',
        "sequence batching control tensor 'S' is specified for multiple control kinds for m",
    ),
    (
        f'control_input {{ name: "S" {START} int32_false_true: [ 0, 1 ] }} {START} }} }}',
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    ),
    (
        f'control_input {{ name: "S" {START} }} }}',
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
        "'bool_false_true' for "
        "CONTROL_SEQUENCE_START for m",
    ),
    (
        f'control_input {{ name: "S" {START} int32_false_true: 0 bool_false_true: true }} }}',
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
        "'bool_false_true' for CONTROL_SEQUENCE_START for m",
    ),
    (
        f'control_input {{ name: "S" {START} fp32_false_true: 0 }} }}',
        "sequence batching control 'fp32_false_true' must have exactly 2 entries for "
        "CONTROL_SEQUENCE_START for m",
    ),
    (
        'control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID int32_false_true: 0 } }',
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
        "'bool_false_true' for "
        "CONTROL_SEQUENCE_CORRID for m",
    ),
    (
        'control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } }',
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
        "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    ),
    (
        "oldest { preferred_batch_size: 0 }",
        "sequence batching preferred batch size must be positive for m",
    ),
    (
        "oldest { preferred_batch_size: 9 }",
        "sequence batching preferred batch size must be <= max batch size for m",
    ),
    (
        "direct { minimum_slot_utilization: 1.5 }",
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
    ),
]

CACHE = [
    (
        "sequence_batching { } response_cache { enable: true }",
        "Response Cache does not currently support model m with sequence batching scheduler. "
        "Please disable the "
        "response cache.",
    ),
    (
        "model_transaction_policy { decoupled: true } response_cache { enable: true }",
        "Response Cache does not currently support model m with 'decoupled' transaction policy. "
        "Please disable "
        "the response cache.",
    ),
    ("model_metrics { metric_control { } }", "metric control must specify 'metric_identifier'"),
    (
        "model_metrics { metric_control { metric_identifier { } } }",
        "metric identifier must specify non-empty 'family'",
    ),
    (
        'model_metrics { metric_control { metric_identifier { family: "f" } } }',
        "metric control must specify 'histogram_options'",
    ),
    (
        'model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { } } }',
        "histogram options must specify non-empty 'buckets'",
    ),
    (
        "ensemble_scheduling { }",
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
]


@pytest.mark.parametrize(("text", "message"), IDENTITY)
def test_identity(text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize(("text", "message"), TENSORS + CACHE)
def test_tensors_and_cache(text: str, message: str) -> None:
    assert refusal(BASE + text) == message


def test_empty_reshape_needs_batching() -> None:
    text = (
        'name: "m" backend: "python" input { name: "A" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }'
    )
    assert refusal(text) == (
        "model input 'A' cannot have empty reshape for non-batching model as scalar tensors are "
        "not supported for m"
    )


@pytest.mark.parametrize(("text", "message"), BATCH_IO)
def test_batch_io(text: str, message: str) -> None:
    assert refusal(BASE + IO + text) == message


@pytest.mark.parametrize(("text", "message"), DYNAMIC)
def test_dynamic_batching(text: str, message: str) -> None:
    assert refusal(f"{BASE}dynamic_batching {{ {text} }}") == message


@pytest.mark.parametrize(("text", "message"), SEQUENCE)
def test_sequence_batching(text: str, message: str) -> None:
    assert refusal(f"{BASE}sequence_batching {{ {text} }}") == message


NO_GPU = (
    "Hint: the server has no GPU that it may use: write KIND_CPU, or KIND_AUTO for a GPU where there is one"
)


@pytest.mark.parametrize(
    ("group", "gpus", "message"),
    [
        ("kind: KIND_GPU", (), f"has kind KIND_GPU but no GPUs are available {NO_GPU}"),
        (
            "kind: KIND_GPU gpus: 0",
            (),
            "specifies invalid or unsupported gpu id 0. GPUs with at least the minimum required CUDA compute "
            f"compatibility of 6.000000 are: none {NO_GPU}",
        ),
        ("kind: KIND_CPU gpus: 0", (), "has kind KIND_CPU but specifies one or more GPUs"),
        ("kind: KIND_MODEL gpus: 0", (), "has kind KIND_MODEL but specifies one or more GPUs"),
        (
            "kind: KIND_GPU gpus: 7",
            (1, 0),
            "specifies invalid or unsupported gpu id 7. GPUs with at least the minimum required CUDA compute "
            "compatibility of 6.000000 are: 0, 1",
        ),
        (
            'kind: KIND_CPU profile: "1"',
            (),
            "and platform specifies profile field which is only supported for TensorRT models",
        ),
        ("kind: KIND_CPU secondary_devices { kind: 7 }", (), "has a secondary device of unknown kind 7"),
    ],
)
def test_instance_groups(group: str, gpus: tuple[int, ...], message: str) -> None:
    expected = f"instance group g of model m {message}"
    assert refusal(f'{BASE}instance_group {{ name: "g" {group} }}', gpus) == expected


def test_a_configuration_without_instances_was_not_normalised() -> None:
    config = parse('name: "m" backend: "python" version_policy { all {} }')
    with pytest.raises(InferError, match="must specify one or more 'instance group's for m"):
        validate(config)
