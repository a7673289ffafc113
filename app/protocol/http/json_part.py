"""Reads the JSON part of inference requests, to be completed with a binary section. No I/O."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from app.core.config.request_hints import datatype_hint
from app.core.datatypes import DATATYPES
from app.core.errors import invalid_arg, unsupported
from app.core.hints import hinted
from app.core.tensors import InferRequest, Parameters, RegionSlice, RequestedOutput, Tensor
from app.protocol.http import strict_json
from app.protocol.http.json_header import (
    InferHeader,
    InputHeader,
    InputParameters,
    OutputHeader,
    custom_parameter,
    read_header,
    reserved_key,
    source_error,
)
from app.protocol.http.json_tensors import check_shape, tensor_bytes
from app.protocol.http.strict_json import as_bool, as_uint, error_prefix

MAX_SEQUENCE_ID_LENGTH: Final = 128
# No model has as many; the limit keeps a hostile request from costing much more than its bytes.
MAX_ENTRIES: Final = 4096
"""Inputs, outputs, or parameters of a request."""
MAX_ARRAYS: Final = 1 << 21
"""Arrays and objects in a request's JSON."""
_UNSET: Final = msgspec.UNSET
_decode: Final = msgspec.json.Decoder(InferHeader).decode
_NO_PARAMETERS: Final = InputParameters()


class InputPart(NamedTuple):
    """An input with data `binary[start:end]`, or else `data`: given as JSON, or in shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    start: int
    end: int
    data: bytes | RegionSlice | None


class JsonPart(NamedTuple):
    """A request without its model and its binary section.

    `reserved` are the fields of `InferRequest` that reserved parameters set. `binary_default`: whether
    outputs that the request does not list are sent in binary. `needs_json_encoding`: whether any output may
    have to be encoded as JSON or classified.
    """

    inputs: tuple[InputPart, ...]
    outputs: tuple[RequestedOutput, ...]
    id: str
    reserved: dict[str, Any]
    parameters: Parameters
    binary_default: bool
    binary_size: int
    needs_json_encoding: bool

    def complete(self, model: str, version: str, binary: memoryview) -> InferRequest:
        """Return the request; its binary tensors are views of `binary`.

        Raises:
            InferError: INVALID_ARG when the binary section does not have the size that the JSON part gives.
        """
        if len(binary) != self.binary_size:
            self._refuse_size(model, len(binary))
        inputs = [
            Tensor(name, datatype, shape, binary[start:end] if data is None else data)
            for name, datatype, shape, start, end, data in self.inputs
        ]
        request = InferRequest(model, version, tuple(inputs), self.outputs, self.id, self.parameters)
        return msgspec.structs.replace(request, **self.reserved) if self.reserved else request

    def _refuse_size(self, model: str, size: int) -> NoReturn:
        for entry in self.inputs:
            if entry.end > size:
                missing = entry.end - max(size, entry.start)
                raise invalid_arg(
                    f"unexpected size for input '{entry.name}', expecting {missing} additional bytes "
                    f"for model '{model}'"
                )
        raise invalid_arg(f"unexpected additional input data for model '{model}'")


def read_json_part(data: bytes | memoryview, max_input_size: int) -> JsonPart:
    """Read the JSON part of a request.

    Raises:
        InferError: see `json_header` and `json_tensors`.
    """
    return check_header(parse_header(data), max_input_size)


def parse_header(data: bytes | memoryview) -> InferHeader:
    """Decode the JSON part of a request; the first of several equal keys counts, as in rapidjson.

    Raises:
        InferError: INTERNAL for JSON errors of syntax or type, INVALID_ARG where Triton says invalid.
    """
    if len(data) > MAX_ARRAYS:
        strict_json.check_count(data, b"[{", MAX_ARRAYS)
    header = read_plain(data)
    if header is None:
        header = read_header(strict_json.parse_first(data))
        check_entries(len(header.inputs), len(header.outputs), len(header.parameters))
    return header


def read_plain(data: bytes | memoryview) -> InferHeader | None:
    """Decode the JSON part of a request; None if it is to be read value by value, as for equal keys.

    Raises:
        InferError: it is nested too deeply, or has too many entries.
    """
    try:
        header = _decode(data)
    except RecursionError:
        raise strict_json.too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    check_entries(len(header.inputs), len(header.outputs), len(header.parameters))
    return None if _has_equal_keys(bytes(data), header) else header


class _InputData(msgspec.Struct, gc=False):
    """The data of an input as it was sent."""

    data: msgspec.Raw = msgspec.Raw()


class _Data(msgspec.Struct, gc=False):
    inputs: list[_InputData]


_decode_data: Final = msgspec.json.Decoder(_Data).decode


def read_data(data: bytes) -> list[bytes]:
    """Return the JSON of each input's data, empty where there is none."""
    return [bytes(entry.data) for entry in _decode_data(data).inputs]


_LONG: Final = 4096
_SEARCHED: Final = 256
"""Bytes of a long tensor that are searched for: a search for all of them takes longer than their decoding."""


def _has_equal_keys(data: bytes, header: InferHeader) -> bool:
    """Return whether a member of the JSON that a header was decoded from has the name of another one.

    Of those msgspec reads the last. The JSON of tensors, which may be long, is hardly looked at.
    """
    if data.count(b":") == _fewest_members(header):
        return False  # there is none but those that were read
    for tensor in read_data(data):
        if len(tensor) > _LONG and tensor[:1] == b"[":
            start = data.find(tensor[:_SEARCHED])
            if data.startswith(tensor, start):
                data = data[:start] + b"0" + data[start + len(tensor) :]
    return strict_json.has_equal_keys(data)


def _fewest_members(header: InferHeader) -> int:
    """Return how many members of objects a header has at least, if each input has a source of data."""
    count = 1 + bool(header.outputs) + bool(header.id)
    if header.parameters:
        count += 1 + len(header.parameters)
    for entry in header.inputs:
        count += 4 if entry.parameters is _UNSET else 5
    for output in header.outputs:
        count += 1 if output.parameters is _UNSET else 3
    return count


def check_entries(inputs: int, outputs: int, parameters: int) -> None:
    """Refuse a request with too many entries.

    Raises:
        InferError: INVALID_ARG.
    """
    if max(inputs, outputs, parameters) > MAX_ENTRIES:
        raise invalid_arg(
            f"a request may have at most {MAX_ENTRIES} inputs and {MAX_ENTRIES} outputs"
            + (f" and {MAX_ENTRIES} parameters" if parameters > MAX_ENTRIES else "")
        )


def check_header(header: InferHeader, max_input_size: int) -> JsonPart:
    """Check a decoded JSON part, and read the tensors in it.

    Raises:
        InferError: see `json_header` and `json_tensors`.
    """
    reserved, parameters, binary_default = _split_parameters(header.parameters)
    inputs: list[InputPart] = []
    position = 0
    for entry in header.inputs:
        part = _read_input(entry, position, max_input_size)
        inputs.append(part)
        position = part.end
        if type(part.data) is RegionSlice:
            reserved["regions"] = True
    outputs = [_requested(wanted) for wanted in header.outputs]
    needs_json_encoding = not (outputs or binary_default)
    for output in outputs:
        if output.region is not None:
            reserved["regions"] = True
        elif not output.binary or output.classification:
            needs_json_encoding = True
    fields = (header.id, reserved, parameters, binary_default, position, needs_json_encoding)
    return JsonPart(tuple(inputs), tuple(outputs), *fields)


def _read_input(entry: InputHeader, position: int, max_input_size: int) -> InputPart:
    parameters = entry.parameters or _NO_PARAMETERS
    size, region = parameters.binary_data_size, parameters.shared_memory_region
    given = entry.data is not _UNSET, size is not _UNSET, region is not _UNSET
    if sum(given) != 1:
        raise source_error(*given)
    shape = tuple(entry.shape)
    count = check_shape(entry.name, shape)
    if entry.datatype not in DATATYPES:
        raise invalid_arg(hinted(f"invalid datatype for input {entry.name}", datatype_hint(entry.datatype)))
    data: bytes | RegionSlice | None = None
    end = position
    if isinstance(region, str):
        data = _slice(region, parameters)
    elif isinstance(size, int):
        end = position + size
    else:
        data = tensor_bytes(entry.name, entry.datatype, count, entry.data, max_input_size)
    return InputPart(entry.name, entry.datatype, shape, position, end, data)


def _slice(region: str, parameters: Any) -> RegionSlice:
    return RegionSlice(region, parameters.shared_memory_offset, parameters.shared_memory_byte_size)


def _requested(entry: OutputHeader) -> RequestedOutput:
    parameters = entry.parameters
    if isinstance(parameters, msgspec.UnsetType):
        return RequestedOutput(entry.name, binary=False)
    classification = parameters.classification
    if isinstance(parameters.shared_memory_region, str):
        if classification is not _UNSET:
            raise invalid_arg("Output can't set both 'shared_memory_region' and 'classification'")
        if parameters.binary_data is True:
            raise invalid_arg("Output can't set both 'shared_memory_region' and 'binary_data'")
        # As binary: it is not encoded as JSON.
        region = _slice(parameters.shared_memory_region, parameters)
        return RequestedOutput(entry.name, binary=True, region=region)
    return RequestedOutput(
        entry.name,
        # A listed output without `binary_data` is JSON, whatever `binary_data_output` says.
        binary=parameters.binary_data is True,
        classification=0 if isinstance(classification, msgspec.UnsetType) else classification,
    )


def _split_parameters(given: Parameters) -> tuple[dict[str, Any], Parameters, bool]:
    """Separate the reserved request parameters from the custom ones."""
    reserved: dict[str, Any] = {}
    custom: Parameters = {}
    for key, value in given.items():
        if key in _RESERVED:
            field, reader = _RESERVED[key]
            with error_prefix(f"Unable to parse '{key}'"):
                reserved[field] = reader(value)
        elif key.startswith("triton_"):
            raise reserved_key()
        else:
            custom[key] = custom_parameter(value)
    if len(str(reserved.get("sequence_id", ""))) > MAX_SEQUENCE_ID_LENGTH:
        raise unsupported(f"string correlation ID cannot be longer than {MAX_SEQUENCE_ID_LENGTH} characters")
    return reserved, custom, reserved.pop("binary_data_output", False)


def _sequence_id(value: Any) -> int | str:
    if type(value) is int and 0 <= value < 1 << 64:
        return value
    return strict_json.as_text(value)


_RESERVED: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "sequence_id": ("sequence_id", _sequence_id),
    "sequence_start": ("sequence_start", as_bool),
    "sequence_end": ("sequence_end", as_bool),
    "priority": ("priority", as_uint),
    "timeout": ("timeout_us", as_uint),
    "binary_data_output": ("binary_data_output", as_bool),
}
