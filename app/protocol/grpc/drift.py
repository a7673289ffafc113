"""Messages of the gRPC service `nereid.DriftService`, which docs/operate/drift.proto describes.

The answer is a `google.protobuf.Struct` with the fields of the REST API's JSON.
"""

from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.struct_pb2 import Struct

from app.core.drift.status import DriftStatus

SERVICE: Final = "nereid.DriftService"


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="nereid/drift.proto",
        package="nereid",
        syntax="proto3",
        dependency=[Struct.DESCRIPTOR.file.name],
    )
    request = file.message_type.add(name="DriftStatusRequest")
    for number, name in enumerate(("model_name", "model_version"), 1):
        request.field.add(name=name, number=number, type=FieldDescriptorProto.TYPE_STRING, label=1)
    kind, struct = FieldDescriptorProto.TYPE_MESSAGE, ".google.protobuf.Struct"
    response = file.message_type.add(name="DriftStatusResponse")
    response.field.add(name="status", number=1, type=kind, type_name=struct, label=1)
    types = {"input_type": ".nereid.DriftStatusRequest", "output_type": ".nereid.DriftStatusResponse"}
    file.service.add(name="DriftService").method.add(name="DriftStatus", **types)
    return file


FILE: Final = _file()
_POOL: Final = descriptor_pool.Default()  # where reflection looks
_POOL.AddSerializedFile(FILE.SerializeToString())


def _message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"nereid.{name}"))


DriftStatusRequest: Final = _message_class("DriftStatusRequest")
DriftStatusResponse: Final = _message_class("DriftStatusResponse")


def encode_status(status: DriftStatus) -> Any:
    """Return a `DriftStatusResponse`."""
    response = DriftStatusResponse()
    response.status.update(msgspec.to_builtins(status, str_keys=True, builtin_types=()))
    return response
