"""Completion of a configuration from the signature of a SavedModel.

The rules and the texts are those of Triton's tensorflow backend (AutoCompleteHelper in src/tensorflow.cc).
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied
from app.core.errors import internal, invalid_arg
from backends.declared import declared_dims
from backends.tensorflow.signature import TfSignature, TfTensor

logger = logging.getLogger(__name__)

_AUTOFILLED: Final = (
    "autofilled max_batch_size to %d for model '%s' since batching is supporrted but no max_batch_size is "
    "specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max "
    "batch size"
)


def complete(declared: mc.ModelConfig, signature: TfSignature, default_batch: int) -> mc.ModelConfig:
    """Return a copy of a configuration with what it leaves out.

    Args:
        declared: the configuration.
        signature: that of the model.
        default_batch: max_batch_size of a model that can batch and says none; 0 for no batching.

    Raises:
        InferError: INTERNAL or INVALID_ARG when configuration and model contradict each other.
    """
    config = copied(declared)
    batched = _batches(config, signature) and max(config.max_batch_size, default_batch) > 0
    if batched and not config.max_batch_size:
        config.max_batch_size = default_batch
        logger.warning(_AUTOFILLED, default_batch, config.name)
    if config.max_batch_size > 1 and not config.WhichOneof("scheduling_choice"):
        config.dynamic_batching.SetInParent()
    for tensor in config.input:
        _fill(config, tensor, signature.inputs, batched)
    declared_inputs = {tensor.name for tensor in config.input} | set(_made_inputs(config))
    for name in signature.inputs:
        if name not in declared_inputs:
            _fill(config, config.input.add(name=name), signature.inputs, batched)
    if not config.output:  # declared outputs limit the outputs
        config.output.extend(mc.ModelOutput(name=name) for name in signature.outputs)
    for tensor in config.output:
        _fill(config, tensor, signature.outputs, batched)
    return config


def _batches(config: mc.ModelConfig, signature: TfSignature) -> bool:
    """Whether the dimensions of a completed configuration come behind a batch dimension.

    A model whose tensors all have a variable first dimension may batch; what the configuration declares says
    whether it does.
    """
    tensors = [*signature.inputs.values(), *signature.outputs.values()]
    if any(tensor.shape and tensor.shape[0] != -1 for tensor in tensors):
        if config.max_batch_size > 0:
            raise internal(
                f"unable to autofill for '{config.name}', configuration specified max-batch"
                f" {config.max_batch_size} but model signature does not support batching"
            )
        return False
    if config.input or config.output:
        return _hint(config, signature)
    # With a scalar among them Triton refuses to complete the configuration.
    return config.max_batch_size > 0 or not any(tensor.is_scalar for tensor in tensors)


def _hint(config: mc.ModelConfig, signature: TfSignature) -> bool:
    """Return whether the declared dimensions come behind a batch dimension.

    Dimensions that are declared decide: one less than the model's means batching. A tensor that is declared
    without dimensions speaks for batching, as long as no other decides.
    """
    hint, explicit = False, None
    for tensor, found in _declared(config, signature):
        if getattr(tensor, "allow_ragged_batch", False):
            return True
        if found is None or not found.shape:
            continue
        dims = declared_dims(tensor)
        if not dims:
            hint = hint if explicit is not None else True
            continue
        batched = len(dims) == len(found.shape) - 1
        if explicit not in (None, batched):
            raise internal(
                f"unable to autofill for '{config.name}', model tensor configurations are contradicting each"
                " other in terms of whether batching is supported"
            )
        hint = explicit = batched
    return hint


def _declared(config: mc.ModelConfig, signature: TfSignature) -> Iterator[tuple[Any, TfTensor | None]]:
    yield from ((tensor, signature.inputs.get(tensor.name)) for tensor in config.input)
    yield from ((tensor, signature.outputs.get(tensor.name)) for tensor in config.output)


def _made_inputs(config: mc.ModelConfig) -> Iterable[str]:
    """Return the names of inputs that the server makes, and no client sends."""
    yield from (name for batch_input in config.batch_input for name in batch_input.target_name)
    yield from (control.name for control in config.sequence_batching.control_input)
    yield from (state.input_name for state in config.sequence_batching.state)


def _fill(
    config: mc.ModelConfig,
    tensor: mc.ModelInput | mc.ModelOutput,
    tensors: Mapping[str, TfTensor],
    batched: bool,
) -> None:
    """Set the data type and dims of a tensor where they are missing; one that the model lacks stays."""
    if not tensor.name:
        raise invalid_arg("'name' is a required field for all inputs/outputs.")
    found = tensors.get(tensor.name)
    if found is None:
        return
    if tensor.data_type == mc.TYPE_INVALID:
        tensor.data_type = mc.DataType.Value(found.config_type)
    if tensor.dims:
        return
    if found.shape is None or (batched and found.is_scalar):
        raise invalid_arg(
            f"Unable to autofill for '{config.name}': the rank of model tensor '{tensor.name}' is 0 and"
            " dimensions are not defined"
        )
    dims = found.shape[1:] if batched else found.shape
    tensor.dims.extend(dims or (1,))
    if batched and not dims:
        # In a configuration, only a reshape can express "no dimensions", and only behind a batch dimension.
        tensor.reshape.SetInParent()
