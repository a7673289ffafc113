"""Checks of `dynamic_batching` and `sequence_batching`, with Triton's texts (src/model_config_utils.cc)."""

from collections.abc import Iterable
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg

_VALUE_FIELDS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")
_BOOLEAN_KINDS: Final = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")
_CORRID: Final = "CONTROL_SEQUENCE_CORRID"
_CORRID_TYPES: Final = (mc.TYPE_UINT64, mc.TYPE_INT64, mc.TYPE_UINT32, mc.TYPE_INT32, mc.TYPE_STRING)


def validate_dynamic_batching(config: mc.ModelConfig) -> None:
    """Check the preferred sizes, the priority levels and the queue policies.

    Raises:
        InferError: INVALID_ARG.
    """
    batching = config.dynamic_batching
    _check_preferred(batching.preferred_batch_size, config, "dynamic batching preferred size")
    if batching.priority_levels:
        _check_priorities(batching, config.name)
    if batching.preserve_ordering:
        _check_order_kept(batching, config.name)


def _check_preferred(sizes: Iterable[int], config: mc.ModelConfig, what: str) -> None:
    for size in sizes:
        if size <= 0:
            raise invalid_arg(f"{what} must be positive for {config.name}")
        if size > config.max_batch_size:
            raise invalid_arg(f"{what} must be <= max batch size for {config.name}")


def _check_priorities(batching: mc.ModelDynamicBatching, model: str) -> None:
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        raise invalid_arg(f"default priority level must be in range [1, {levels}] for {model}")
    if any(not 1 <= level <= levels for level in batching.priority_queue_policy):
        what = "priority queue policy must have priority level"
        raise invalid_arg(f"{what} in range [1, {levels}] for {model}")


def _check_order_kept(batching: mc.ModelDynamicBatching, model: str) -> None:
    if batching.priority_levels > 1:
        raise invalid_arg(f"Only one priority level is allowed when 'preserve_ordering' is true for {model}")
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.default_timeout_microseconds and policy.timeout_action == mc.ModelQueuePolicy.DELAY:
            raise invalid_arg(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true "
                f"for {model}"
            )


def validate_sequence_batching(config: mc.ModelConfig) -> None:
    """Check the control tensors and the strategy.

    Raises:
        InferError: INVALID_ARG.
    """
    batching = config.sequence_batching
    _check_control_names(batching, config.name)
    for kind in _BOOLEAN_KINDS:
        for control in _single_control(batching, kind, config.name):
            _check_boolean(control, kind, config.name)
    for control in _single_control(batching, _CORRID, config.name):
        _check_corrid(control, config.name)
    if batching.HasField("oldest"):
        sizes = batching.oldest.preferred_batch_size
        _check_preferred(sizes, config, "sequence batching preferred batch size")
    if batching.HasField("direct") and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        raise invalid_arg(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}"
        )


def _check_control_names(batching: mc.ModelSequenceBatching, model: str) -> None:
    seen: set[str] = set()
    for control_input in batching.control_input:
        if not control_input.name:
            raise invalid_arg(f"sequence batching control tensor must have a name for {model}")
        if control_input.name in seen:
            raise invalid_arg(
                f"sequence batching control tensor '{control_input.name}' is specified for multiple "
                f"control kinds for {model}"
            )
        seen.add(control_input.name)


def _single_control(batching: mc.ModelSequenceBatching, kind: str, model: str) -> list[Any]:
    value = mc.ModelSequenceBatching.Control.Kind.Value(kind)
    controls = [control for tensor in batching.control_input for control in tensor.control]
    found = [control for control in controls if control.kind == value]
    if len(found) > 1:
        raise invalid_arg(f"sequence batching specifies multiple {kind} tensors for {model}")
    return found


def _check_boolean(control: Any, kind: str, model: str) -> None:
    given = [name for name in _VALUE_FIELDS if len(getattr(control, name))]
    if not given:
        raise invalid_arg(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {kind} for {model}"
        )
    if len(given) > 1:
        raise invalid_arg(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {kind} for {model}"
        )
    if len(getattr(control, given[0])) != 2:
        raise invalid_arg(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for {model}"
        )


def _check_corrid(control: Any, model: str) -> None:
    if any(len(getattr(control, name)) for name in _VALUE_FIELDS):
        raise invalid_arg(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
            f"'bool_false_true' for {_CORRID} for {model}"
        )
    if control.data_type not in _CORRID_TYPES:
        raise invalid_arg(
            f"unexpected data type for control {_CORRID} for {model}. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
