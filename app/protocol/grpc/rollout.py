"""Messages of the gRPC service `nereid.RolloutService`, which docs/operate/rollout.proto describes.

The answer is a `google.protobuf.Struct` with the fields of the REST API's JSON.
"""

from typing import Any, Final

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.struct_pb2 import Struct

from app.core.rollout.history import RolloutHistory
from app.core.rollout.status import RolloutChange, RolloutStatus
from app.protocol.rollout import history_fields, parse_change, status_fields

SERVICE: Final = "nereid.RolloutService"
_PACKAGE: Final = SERVICE.partition(".")[0]

_STRUCT: Final = ".google.protobuf.Struct"
_TYPES: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    _STRUCT: FieldDescriptorProto.TYPE_MESSAGE,
}
_MESSAGES: Final = {
    "RolloutStatusRequest": (("model_name", "string"),),
    "RolloutChangeRequest": (
        ("model_name", "string"),
        ("action", "string"),
        ("candidate", "int64"),
        ("weight", "double"),
        ("spec", _STRUCT),
        ("version", "int64"),
        ("why", "string"),
        ("user", "string"),
    ),
    "RolloutStatusResponse": (("status", _STRUCT),),
}
_OPTIONAL: Final = ("candidate", "weight", "version")
_METHODS: Final = (
    ("RolloutStatus", "RolloutStatusRequest"),
    ("RolloutChange", "RolloutChangeRequest"),
    ("RolloutHistory", "RolloutStatusRequest"),
)


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="nereid/rollout.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[Struct.DESCRIPTOR.file.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, 1):
            made = message.field.add(name=field, number=number, type=_TYPES[kind], label=1)
            if kind == _STRUCT:
                made.type_name = _STRUCT
            if field in _OPTIONAL:
                made.proto3_optional, made.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
    service = file.service.add(name="RolloutService")
    for method, request in _METHODS:
        service.method.add(
            name=method, input_type=f".nereid.{request}", output_type=".nereid.RolloutStatusResponse"
        )
    return file


FILE: Final = _file()
_POOL: Final = descriptor_pool.Default()  # where reflection looks
_POOL.AddSerializedFile(FILE.SerializeToString())


def _message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"nereid.{name}"))


RolloutStatusRequest: Final = _message_class("RolloutStatusRequest")
RolloutChangeRequest: Final = _message_class("RolloutChangeRequest")
RolloutStatusResponse: Final = _message_class("RolloutStatusResponse")


def decode_change(message: Any) -> RolloutChange:
    """Read a `RolloutChangeRequest`.

    Raises:
        InferError: INVALID_ARG with the field and what is wrong with it.
    """
    fields: dict[str, Any] = {"action": message.action, "why": message.why, "user": message.user}
    fields |= {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    if message.HasField("spec"):
        fields["spec"] = json_format.MessageToDict(message.spec)
    return parse_change(fields)


def encode_history(history: RolloutHistory) -> Any:
    """Return a `RolloutStatusResponse` with the fields of a history."""
    response = RolloutStatusResponse()
    response.status.update(history_fields(history))
    return response


def encode_status(status: RolloutStatus) -> Any:
    """Return a `RolloutStatusResponse`."""
    response = RolloutStatusResponse()
    response.status.update(status_fields(status))
    return response
