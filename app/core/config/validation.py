"""Validation of a normalised configuration.

Checks, their order and their texts are those of ValidateModelConfig, ValidateModelIOConfig and
ValidateInstanceGroup in Triton's core (src/model_config_utils.cc). Every error is INVALID_ARG and fails the
load.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.backend_facts import BackendFacts, platforms
from app.core.config.ensemble import validate_ensemble
from app.core.config.model_config import WILDCARD
from app.core.config.normalise import ENSEMBLE
from app.core.config.schedulers import validate_dynamic_batching, validate_sequence_batching
from app.core.config.text_models import text_model, text_settings
from app.core.errors import InferError, internal, invalid_arg
from app.core.hints import hinted

_INT64_MAX: Final = (1 << 63) - 1
_TENSORRT: Final = "tensorrt_plan"
_NO_GPU: Final = (
    "the server has no GPU that it may use: write KIND_CPU, or KIND_AUTO for a GPU where there is one"
)
_MIN_COMPUTE_CAPABILITY: Final = "6.000000"
_VARIABLE_HINT: Final = "must be integer >= 1, or -1 to indicate a variable-size dimension"
_NO_CACHE: Final = "Response Cache does not currently support model"


def validate(config: mc.ModelConfig, backend: BackendFacts, gpus: Sequence[int] = ()) -> None:
    """Check a configuration that `infer_backend` and `normalise` have completed.

    Args:
        config: the configuration to check.
        backend: what is known of its backend.
        gpus: CUDA ordinals this server may use.

    Raises:
        InferError: INVALID_ARG with Triton's text for the first error found.
    """
    validate_model(config, backend)
    validate_io(config)
    validate_instances(config, gpus)
    text_model(config)


def validate_model(config: mc.ModelConfig, backend: BackendFacts) -> None:
    """Check what of a configuration no backend completes: all but inputs, outputs and instance groups.

    Raises:
        InferError: as `validate`.
    """
    _check_identity(config, backend)
    if config.HasField("dynamic_batching"):
        validate_dynamic_batching(config)
    if config.HasField("sequence_batching"):
        _check_no_sequence_cache(config)
        validate_sequence_batching(config)
    _check_ensemble(config)
    check_cache(config)
    _check_metrics(config.model_metrics)
    text_settings(config)


def _check_identity(config: mc.ModelConfig, backend: BackendFacts) -> None:
    if not config.name:
        raise invalid_arg("model configuration must specify 'name'")
    if not config.backend and config.platform != ENSEMBLE:
        raise invalid_arg(f"unexpected platform type '{config.platform}' for {config.name}")
    if config.backend and config.platform == ENSEMBLE:
        raise invalid_arg(
            f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE}' and empty backend type"
        )
    # A custom backend may have any platform.
    known = platforms([backend])
    if known and config.platform not in known:
        pair = f"{config.platform}, {config.backend}"
        raise invalid_arg(f"unexpected 'platform' and 'backend' pair, got:{pair}")
    if config.max_batch_size < 0:
        raise invalid_arg(f"'max_batch_size' must be non-negative value for {config.name}")
    if not config.HasField("version_policy"):
        raise invalid_arg(f"must specify 'version policy' for {config.name}")


def _check_no_sequence_cache(config: mc.ModelConfig) -> None:
    if config.response_cache.enable:
        raise invalid_arg(
            f"{_NO_CACHE} {config.name} with sequence batching scheduler. Please disable the response cache."
        )


def _check_ensemble(config: mc.ModelConfig) -> None:
    if config.HasField("ensemble_scheduling"):
        validate_ensemble(config)
    elif config.platform == ENSEMBLE:
        raise invalid_arg(
            f"ensemble scheduling must be set for ensemble {config.name} whose platform is {ENSEMBLE}"
        )


def check_cache(config: mc.ModelConfig) -> None:
    """Refuse a response cache for a decoupled model.

    Raises:
        InferError: INVALID_ARG with Triton's text.
    """
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        raise invalid_arg(
            f"{_NO_CACHE} {config.name} with 'decoupled' transaction policy. "
            "Please disable the response cache."
        )


def _check_metrics(metrics: mc.ModelMetrics) -> None:
    for control in metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise invalid_arg("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise invalid_arg("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise invalid_arg("metric control must specify 'histogram_options'")
        if not control.histogram_options.buckets:
            raise invalid_arg("histogram options must specify non-empty 'buckets'")


def validate_io(config: mc.ModelConfig) -> None:
    """Check `input`, `output`, `batch_input` and `batch_output`.

    Raises:
        InferError: INVALID_ARG; the text ends " for <model>".
    """
    try:
        for tensor in config.input:
            _check_tensor(tensor, config, "input")
        for tensor in config.output:
            _check_tensor(tensor, config, "output")
        _check_batch_inputs(config)
        _check_batch_outputs(config)
    except InferError as error:
        raise invalid_arg(f"{error.message} for {config.name}") from None


def _check_tensor(tensor: Any, config: mc.ModelConfig, side: str) -> None:
    if not tensor.name:
        raise invalid_arg(f"model {side} must specify 'name'")
    prefix = f"model {side} '{tensor.name}' "
    if tensor.data_type == mc.TYPE_INVALID:
        raise invalid_arg(prefix + "must specify 'data_type'")
    if not tensor.dims:
        raise invalid_arg(prefix + "must specify 'dims'")
    _check_dims(tensor, config.max_batch_size, prefix)
    if side == "input" and tensor.format != mc.ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
        raise invalid_arg("model input NHWC/NCHW require 3 dims")
    if tensor.is_shape_tensor and config.platform != _TENSORRT:
        raise invalid_arg("shape tensors are only supported for TensorRT platform")
    if tensor.is_non_linear_format_io and config.platform != _TENSORRT:
        raise invalid_arg("Non-linear IO format is only supported for the TensorRT platform")
    if tensor.is_non_linear_format_io and len(tensor.dims) != 3:
        raise invalid_arg(f"Non-linear IO format {side} requires 3 dims")


def _check_dims(tensor: Any, max_batch_size: int, prefix: str) -> None:
    reshaped = tensor.HasField("reshape")
    if reshaped and not tensor.reshape.shape and max_batch_size == 0:
        raise invalid_arg(
            prefix + "cannot have empty reshape for non-batching model as scalar tensors are not supported"
        )
    if any(dim < 1 and dim != WILDCARD for dim in tensor.dims):
        raise invalid_arg(f"{prefix}dimension {_VARIABLE_HINT}")
    if not reshaped:
        return
    if any(dim < 1 and dim != WILDCARD for dim in tensor.reshape.shape):
        raise invalid_arg(f"{prefix}reshape dimensions {_VARIABLE_HINT}")
    _check_reshape(tensor, prefix)


def _check_reshape(tensor: Any, prefix: str) -> None:
    """Check that dims and reshape have the same variable sizes and the same elements between them."""
    dims, shape = _segments(tensor.dims), _segments(tensor.reshape.shape)
    for name, counts in (("dims", dims), ("reshape", shape)):
        if len(counts) == 1 and counts[0] > _INT64_MAX:
            what = f"element count for tensor '{tensor.name} {name}'"
            raise invalid_arg(f"{what} exceeds maximum size of {_INT64_MAX}")
    if len(dims) != len(shape) and 1 not in (len(dims), len(shape)):
        raise invalid_arg(prefix + "has different number of variable-size dimensions for dims and reshape")
    if dims != shape:
        raise invalid_arg(prefix + "has different size for dims and reshape")


def _segments(dims: Sequence[int]) -> list[int]:
    counts = [1]
    for dim in dims:
        if dim == WILDCARD:
            counts.append(1)
        else:
            counts[-1] = prod((counts[-1], dim))
    return counts


def _check_batch_inputs(config: mc.ModelConfig) -> None:
    for batch_input in config.batch_input:
        kind = _known_kind(mc.BatchInput.Kind, batch_input.kind, "batch input")
        _check_one_source(batch_input, f"batch input kind '{kind}'")
        if batch_input.data_type not in (mc.TYPE_INT32, mc.TYPE_FP32):
            raise invalid_arg("batch input data type must be TYPE_INT32 or TYPE_FP32")
        _check_sources(batch_input, config)


def _check_batch_outputs(config: mc.ModelConfig) -> None:
    outputs = {output.name for output in config.output}
    for batch_output in config.batch_output:
        kind = _known_kind(mc.BatchOutput.Kind, batch_output.kind, "batch output")
        _check_one_source(batch_output, f"batch output kind '{kind}'")
        _check_sources(batch_output, config)
        seen: set[str] = set()
        for name in batch_output.target_name:
            if name not in outputs:
                raise invalid_arg(f"unknown target output name '{name}'")
            if name in seen:
                raise invalid_arg(f"target output name '{name}' can only be specified once")
            seen.add(name)


def _known_kind(enum: Any, value: int, what: str) -> str:
    if value not in enum.values():
        raise invalid_arg(f"unknown {what} kind '{value}'")
    return str(enum.Name(value))


def _check_one_source(batch_io: Any, what: str) -> None:
    if len(batch_io.source_input) != 1:
        raise invalid_arg(f"{what} expects 1 source input, got {len(batch_io.source_input)}")


def _check_sources(batch_io: Any, config: mc.ModelConfig) -> None:
    inputs = {tensor.name for tensor in config.input}
    for name in batch_io.source_input:
        if name not in inputs:
            raise invalid_arg(f"unknown source input name '{name}'")


def validate_instances(config: mc.ModelConfig, gpus: Sequence[int]) -> None:
    """Check the `instance_group`s of a model, unless it is an ensemble, against the GPUs of this server.

    Raises:
        InferError: INVALID_ARG; INTERNAL for a kind that normalisation left at KIND_AUTO, as in Triton.
    """
    if config.HasField("ensemble_scheduling"):
        return
    if not config.instance_group:
        raise invalid_arg(f"must specify one or more 'instance group's for {config.name}")
    for group in config.instance_group:
        _check_group(group, config, gpus)


def _check_group(group: mc.ModelInstanceGroup, config: mc.ModelConfig, gpus: Sequence[int]) -> None:
    subject = f"instance group {group.name} of model {config.name}"
    kind = mc.ModelInstanceGroup.Kind.Name(group.kind)
    if kind == "KIND_AUTO":
        raise internal(f"{subject} has unexpected kind KIND_AUTO")
    if kind == "KIND_GPU":
        _check_gpus(group, subject, gpus)
    elif group.gpus:
        raise invalid_arg(f"{subject} has kind {kind} but specifies one or more GPUs")
    for device in group.secondary_devices:
        if device.kind not in mc.ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind.values():
            raise invalid_arg(f"{subject} has a secondary device of unknown kind {device.kind}")
    if group.profile and config.platform != _TENSORRT:
        # Triton has no space between the platform and "specifies".
        raise invalid_arg(
            f"{subject} and platform {config.platform}specifies profile field which is only supported for "
            "TensorRT models"
        )


def _check_gpus(group: mc.ModelInstanceGroup, subject: str, gpus: Sequence[int]) -> None:
    if not group.gpus:
        missing = "specifies no GPUs" if gpus else "no GPUs are available"
        text = f"{subject} has kind KIND_GPU but {missing}"
        raise invalid_arg(text if gpus else hinted(text, _NO_GPU))
    usable = ", ".join(map(str, sorted(gpus)))
    for gpu in group.gpus:
        if gpu not in gpus:
            text = (
                f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum "
                f"required CUDA compute compatibility of {_MIN_COMPUTE_CAPABILITY} are: {usable or 'none'}"
            )
            raise invalid_arg(text if gpus else hinted(text, _NO_GPU))
