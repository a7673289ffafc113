"""`ModelConfig` as the JSON of Triton's `/config`; source: ModelConfigToJson in its core."""

from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2 as mc

_INT64_TYPES: Final = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})
# Triton turns protobuf's 64-bit strings into numbers field by field and leaves out these.
_LEFT_AS_STRINGS: Final = frozenset(
    {
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    }
)


def config_to_json(config: mc.ModelConfig) -> dict[str, Any]:
    """Return the configuration as JSON values, fields in the order of the message's declaration.

    Names are the original ones; fields without presence are always included, unset messages and unset members
    of a oneof never; enums are names. 64-bit integers are numbers except in the fields Triton leaves as
    strings. An empty configuration is an empty object.
    """
    return _message(config) if config.ByteSize() else {}


def _message(message: Message) -> dict[str, Any]:
    return {
        field.name: _field(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _field(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name["value"]
        return {str(key): _scalar(entry, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_scalar(field, item) for item in value]
    return _scalar(field, value)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _message(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if field.cpp_type in _INT64_TYPES and field.full_name in _LEFT_AS_STRINGS:
        return str(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        # The shortest digits of the same 32-bit float: 0.9, not 0.8999999761581421; 1, not 1.0.
        shortest = float(str(np.float32(value)))
        return int(shortest) if shortest.is_integer() else shortest
    return value
