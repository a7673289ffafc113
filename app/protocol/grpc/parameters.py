"""Parameters of gRPC requests: the `InferParameter` oneof to Python values."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from app.core.errors import invalid_arg, unsupported
from app.core.tensors import Parameters, RegionSlice

EMPTY_FINAL: Final = "triton_enable_empty_final_response"

_UINT64_MASK: Final = 2**64 - 1
_CUSTOM_KINDS: Final = ("int64_param", "bool_param", "string_param", "double_param")


class _Reserved(NamedTuple):
    """A request parameter with a field of its own in `InferRequest`."""

    field: str
    kinds: tuple[str, ...]
    convert: Callable[[Any], Any]

    @property
    def expected(self) -> str:
        return " or ".join(self.kinds)


def _as_uint64(value: int) -> int:
    return value & _UINT64_MASK


def _sequence_id(value: int | str) -> int | str:
    if isinstance(value, int):
        return _as_uint64(value)
    if len(value.encode()) > 128:
        raise unsupported("string correlation ID cannot be longer than 128 characters")
    return value


def _priority(value: int) -> int:
    if value < 0:
        raise invalid_arg("invalid value for 'priority', expected value >= 0.")
    return value


_RESERVED: Final[Mapping[str, _Reserved]] = {
    "sequence_id": _Reserved("sequence_id", ("int64_param", "string_param"), _sequence_id),
    "sequence_start": _Reserved("sequence_start", ("bool_param",), bool),
    "sequence_end": _Reserved("sequence_end", ("bool_param",), bool),
    "priority": _Reserved("priority", ("int64_param", "uint64_param"), _priority),
    "timeout": _Reserved("timeout_us", ("int64_param",), _as_uint64),
}


def decode_parameters(entries: Mapping[str, Any]) -> tuple[dict[str, Any], Parameters]:
    """Return the reserved parameters by `InferRequest` field, and the custom ones.

    Raises:
        InferError: INVALID_ARG for a value of the wrong type or a reserved key, UNSUPPORTED for a string
            correlation id that is too long.
    """
    fields: dict[str, Any] = {}
    custom: Parameters = {}
    for key, value in entries.items():
        kind = value.WhichOneof("parameter_choice")
        reserved = _RESERVED.get(key)
        if reserved is not None:
            _expect_kind(key, kind, reserved.kinds, reserved.expected)
            fields[reserved.field] = reserved.convert(getattr(value, kind))
        elif key.startswith("triton_"):
            _check_triton_key(key, kind)
        else:
            _expect_kind(key, kind, _CUSTOM_KINDS, "int64_param, bool_param, or string_param")
            custom[key] = getattr(value, kind)
    return fields, custom


def _expect_kind(key: str, kind: str | None, allowed: tuple[str, ...], expected: str) -> None:
    if kind not in allowed:
        raise invalid_arg(f"invalid value type for '{key}' parameter, expected {expected}.")


def _check_triton_key(key: str, kind: str | None) -> None:
    if key != EMPTY_FINAL:
        raise invalid_arg(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
            f"starting with 'triton_' are allowed: {EMPTY_FINAL}"
        )
    _expect_kind(key, kind, ("bool_param",), "bool_param")


def decode_region(tensor: Any) -> RegionSlice | None:
    """Return the shared memory slice that an input or a requested output names, if any.

    Raises:
        InferError: INVALID_ARG for a value of the wrong type, a region without a size, or the reverse.
    """
    entries = tensor.parameters
    if "shared_memory_region" not in entries:
        for key in ("shared_memory_offset", "shared_memory_byte_size"):
            if key in entries:
                raise invalid_arg(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter "
                    f"for tensor '{tensor.name}'"
                )
        return None
    region = _region_value(tensor, "shared_memory_region", "string_param")
    if "shared_memory_byte_size" not in entries:
        raise invalid_arg(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter "
            f"for tensor '{tensor.name}'"
        )
    nbytes = _as_uint64(_region_value(tensor, "shared_memory_byte_size", "int64_param"))
    given = "shared_memory_offset" in entries
    offset = _as_uint64(_region_value(tensor, "shared_memory_offset", "int64_param")) if given else 0
    return RegionSlice(region, offset, nbytes)


def _region_value(tensor: Any, key: str, kind: str) -> Any:
    value = tensor.parameters[key]
    if value.WhichOneof("parameter_choice") != kind:
        raise invalid_arg(
            f"invalid value type for '{key}' parameter for tensor '{tensor.name}', expected {kind}."
        )
    return getattr(value, kind)


def wants_empty_final(entries: Mapping[str, Any]) -> bool:
    """Return whether to send the empty final response of a stream; `decode_parameters` checks the type."""
    return EMPTY_FINAL in entries and bool(entries[EMPTY_FINAL].bool_param)
