"""Protobuf messages of others, described in Python, in a descriptor pool of their own.

A process that also imports the package of the others registers the same names in the default pool.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pool, message_factory, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

_FIELD: Final = re.compile(r"(\w+):(\*|map<)?([\w.]+)>?=(\d+)")


class MessagePool:
    """Message classes by full name.

    Args:
        package: of the messages.
        messages: fields by message, as `name:type=number`: `*type` is repeated, `map<type>` has strings as
            keys, a type with a dot is a message of this pool, of google.protobuf's wrappers or `Any`.
    """

    def __init__(self, package: str, messages: Mapping[str, str]) -> None:
        self._package = package
        self._pool = descriptor_pool.DescriptorPool()
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for known in (wrappers_pb2.DESCRIPTOR, any_pb2.DESCRIPTOR):
            self._pool.AddSerializedFile(known.serialized_pb)
            file.dependency.append(known.name)
        for name, fields in messages.items():
            file.message_type.append(_message(package, name, fields))
        self._pool.AddSerializedFile(file.SerializeToString())

    def message_class(self, name: str) -> Any:
        """Return the class of a message, by its name in the package."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{self._package}.{name}"))


def _message(package: str, name: str, fields: str) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for field, kind, type_, number in _FIELD.findall(fields):
        if kind == "map<":
            entry = f"{field.title().replace('_', '')}Entry"
            nested = _message("", entry, f"key:string=1 value:{type_}=2")
            nested.options.map_entry = True
            message.nested_type.append(nested)
            type_ = f"{package}.{name}.{entry}"
        _add_field(message, field, type_, int(number), repeated=bool(kind))
    return message


def _add_field(message: DescriptorProto, name: str, type_: str, number: int, repeated: bool) -> None:
    field = message.field.add(name=name, number=number, label=3 if repeated else 1)
    if "." in type_:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{type_}"
    else:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{type_.upper()}")
