"""The JSON part of an inference request as structs, read value by value from a decoded document.

Reading in Triton's order either succeeds for documents that the struct decoder of `json_part` refuses
(NaN in the data, an odd number) or finds the error text that Triton would give.
"""

from typing import Annotated, Any, Final

import msgspec

from app.core.errors import InferError, internal, invalid_arg
from app.core.hints import hinted
from app.core.tensors import Parameters, ParameterValue
from app.protocol.http import strict_json
from app.protocol.http.strict_json import as_bool, as_text, as_uint, error_prefix

_INT64_MAX: Final = (1 << 63) - 1
# msgspec has no limits beyond 63 bits; larger numbers, and their errors, are left to `read_header`.
_UInt = Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]
_UNSET: Final = msgspec.UNSET


class _TensorParameters(msgspec.Struct, gc=False):
    """Place of a tensor in shared memory."""

    shared_memory_region: str | msgspec.UnsetType = _UNSET
    shared_memory_offset: _UInt = 0
    shared_memory_byte_size: _UInt = 0


class InputParameters(_TensorParameters, gc=False):
    """Parameters of an input that the server acts on."""

    binary_data_size: _UInt | msgspec.UnsetType = _UNSET


class InputHeader(msgspec.Struct, gc=False):
    """One entry of `inputs`; `data` is any JSON value."""

    name: str
    shape: list[_UInt]
    datatype: str
    parameters: InputParameters | msgspec.UnsetType = _UNSET
    data: Any = _UNSET


class OutputParameters(_TensorParameters, gc=False):
    """Parameters of a requested output that the server acts on."""

    binary_data: bool | msgspec.UnsetType = _UNSET
    classification: _UInt | msgspec.UnsetType = _UNSET


class OutputHeader(msgspec.Struct, gc=False):
    """One entry of `outputs`."""

    name: str
    parameters: OutputParameters | msgspec.UnsetType = _UNSET


class InferHeader(msgspec.Struct, gc=False):
    """The whole JSON part; `parameters` still holds the reserved keys."""

    inputs: list[InputHeader]
    outputs: list[OutputHeader] = []
    id: str = ""
    parameters: Parameters = {}


def read_header(document: Any) -> InferHeader:
    """Read a decoded JSON document in the order in which Triton does, with its error texts."""
    identifier, parameters, outputs = "", {}, []
    fields = document if isinstance(document, dict) else {}
    if "id" in fields:
        with error_prefix("Unable to parse 'id'"):
            identifier = as_text(fields["id"])
    if "parameters" in fields:
        parameters = _read_parameters(fields["parameters"])
    try:
        with error_prefix("Unable to parse 'inputs'"):
            entries = strict_json.member_array(document, "inputs")
    except InferError as error:
        raise InferError(error.code, hinted(error.message, _body_hint(fields))) from None
    inputs = [_read_input(entry) for entry in entries]
    if "outputs" in fields:
        with error_prefix("Unable to parse 'outputs'"):
            entries = strict_json.member_array(document, "outputs")
        outputs = [_read_output(entry) for entry in entries]
    return InferHeader(inputs, outputs, identifier, parameters)


def _body_hint(fields: dict[str, Any]) -> str:
    """Say what a body without inputs is to look like, and where a body of another protocol belongs."""
    wanted = "a v2 body is {'inputs': [{'name': ..., 'shape': [...], 'datatype': ..., 'data': [...]}]}"
    if "instances" in fields or isinstance(fields.get("inputs"), dict):
        return (
            f"this is a body of TensorFlow Serving's or KServe's V1 protocol; {wanted}. "
            "With --allow-tfserving V1 bodies are answered at /v1/models/<model>:predict"
        )
    return wanted


def _read_parameters(value: Any) -> Parameters:
    if not isinstance(value, dict):
        raise internal("failed to get request params.: attempt to get members for non-object")
    return {as_text(key): read_parameter(key, entry) for key, entry in value.items()}


def read_parameter(key: str, value: Any) -> ParameterValue:
    """Return a request parameter's JSON value if a parameter can have its type.

    Raises:
        InferError: INVALID_ARG, or INTERNAL for a string that is not valid UTF-8.
    """
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, bool | int | float):
        return value
    if key in _RESERVED_TYPES:
        raise internal(f"Unable to parse '{key}': attempt to access JSON {_RESERVED_TYPES[key]}")
    if key.startswith("triton_"):
        raise reserved_key()
    raise invalid_arg(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


_BOOLEAN: Final = "non-boolean as boolean"
_UNSIGNED: Final = "non-unsigned-integer as unsigned-integer"
_RESERVED_TYPES: Final = {
    "sequence_id": "non-string as string",
    "sequence_start": _BOOLEAN,
    "sequence_end": _BOOLEAN,
    "binary_data_output": _BOOLEAN,
    "priority": _UNSIGNED,
    "timeout": _UNSIGNED,
}


def reserved_key() -> InferError:
    """Return the error for a custom parameter with a name reserved for Triton."""
    return invalid_arg(
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
    )


def custom_parameter(value: ParameterValue) -> ParameterValue:
    """Return a parameter's value; an integer beyond 64 bits becomes a float, as in Triton."""
    if isinstance(value, int) and not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        return float(value)
    return value


def _read_input(entry: Any) -> InputHeader:
    fields = entry if isinstance(entry, dict) else {}
    given = fields.get("parameters")
    parameters = given if isinstance(given, dict) else {}
    given = "data" in fields, "binary_data_size" in parameters, "shared_memory_region" in parameters
    if sum(given) != 1:
        raise source_error(*given)
    return InputHeader(
        _read_text(entry, "name"),
        _read_shape(entry),
        _read_text(entry, "datatype"),
        InputParameters(**_read_known(parameters, _INPUT_READERS)),
        fields.get("data", _UNSET),
    )


def source_error(data: bool, binary: bool, shared_memory: bool) -> InferError:
    """Return the error for an input without exactly one source of data."""
    named = ((data, " 'data'"), (binary, " 'binary_data_size'"), (shared_memory, " 'shared_memory_region'"))
    found = "".join(name for present, name in named if present)
    return invalid_arg(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But" + (f" set{found}" if found else " no field is set")
    )


def _read_text(entry: Any, key: str) -> str:
    with error_prefix(f"Unable to parse '{key}'"):
        return as_text(strict_json.member(entry, key))


def _read_shape(entry: Any) -> list[int]:
    with error_prefix("Unable to parse 'shape'"):
        return [as_uint(dim) for dim in strict_json.member_array(entry, "shape")]


_INPUT_READERS: Final = {
    "binary_data_size": (as_uint, "Unable to parse"),
    "shared_memory_region": (as_text, "Unable to parse"),
    "shared_memory_offset": (as_uint, "Unable to parse"),
    "shared_memory_byte_size": (as_uint, "Unable to parse"),
}
_OUTPUT_READERS: Final = _INPUT_READERS | {
    "classification": (as_uint, "Unable to set"),
    "binary_data": (as_bool, "Unable to parse"),
}


def _read_known(parameters: dict[str, Any], readers: Any) -> dict[str, Any]:
    known = {}
    for key, (reader, prefix) in readers.items():
        if key in parameters:
            with error_prefix(f"{prefix} '{key}'"):
                known[key] = reader(parameters[key])
    return known


def _read_output(entry: Any) -> OutputHeader:
    given = entry.get("parameters") if isinstance(entry, dict) else None
    parameters = given if isinstance(given, dict) else {}
    name = _read_text(entry, "name")
    known = _read_known(parameters, _OUTPUT_READERS)
    known.pop("binary_data_size", None)
    return OutputHeader(name, OutputParameters(**known))
