"""Describes Nereid's own gRPC services in Python, for client and server. Needs protobuf."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.struct_pb2 import Struct

_FIELD: Final = re.compile(r"(\w+):([*?]?)([\w.]+)")
_PACKAGE: Final = "nereid"


class OwnService:
    """A gRPC service of the package `nereid` with its messages, in the pool where reflection looks.

    Args:
        name: of the service, without the package.
        messages: fields by message in the order of their numbers, as `name:type`: `?type` is optional,
            `*type` repeated, a type that begins with a capital a message of the package, one with a dot any.
        methods: request and response of each.
    """

    def __init__(
        self, name: str, messages: Mapping[str, str], methods: Mapping[str, tuple[str, str]]
    ) -> None:
        self.name = f"{_PACKAGE}.{name}"
        self.file = FileDescriptorProto(
            name=f"nereid/{name.removesuffix('Service').lower()}.proto",
            package=_PACKAGE,
            syntax="proto3",
            dependency=[Struct.DESCRIPTOR.file.name],
        )
        for message, fields in messages.items():
            self.file.message_type.append(_message(message, fields))
        service = self.file.service.add(name=name)
        for method, (request, response) in methods.items():
            service.method.add(
                name=method, input_type=f".{_PACKAGE}.{request}", output_type=f".{_PACKAGE}.{response}"
            )
        self._pool = descriptor_pool.Default()
        self._pool.AddSerializedFile(self.file.SerializeToString())

    def message(self, name: str) -> Any:
        """Return the class of a message, by its name in the package."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _message(name: str, fields: str) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for number, (field, kind, type_) in enumerate(_FIELD.findall(fields), 1):
        made = message.field.add(name=field, number=number, label=3 if kind == "*" else 1)
        if type_.islower() and "." not in type_:
            made.type = FieldDescriptorProto.Type.Value(f"TYPE_{type_.upper()}")
        else:
            made.type = FieldDescriptorProto.TYPE_MESSAGE
            made.type_name = f".{type_}" if "." in type_ else f".{_PACKAGE}.{type_}"
        if kind == "?":
            made.proto3_optional, made.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field}")
    return message
