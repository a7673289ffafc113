"""Messages of the gRPC service `nereid.FeedbackService`, which docs/use/feedback.proto describes.

Client and server have them from here. Needs protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.struct_pb2 import Struct

SERVICE: Final = "nereid.FeedbackService"
_PACKAGE: Final = SERVICE.partition(".")[0]
_RECORD: Final = ".nereid.FeedbackRecord"
_STRUCT: Final = ".google.protobuf.Struct"
_VALUE: Final = ".google.protobuf.Value"
_SCALARS: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}
_MESSAGES: Final = {
    "FeedbackRecord": (
        ("id", "string"),
        ("row", "string"),
        ("score", "double"),
        ("label", _VALUE),
        ("outputs", _STRUCT),
        ("output", "string"),
    ),
    "FeedbackRequest": (("model_name", "string"), ("model_version", "string"), ("feedback", _RECORD)),
    "FeedbackResponse": (("model_name", "string"), ("accepted", "int64")),
    "FeedbackFiguresRequest": (("model_name", "string"),),
    "FeedbackFiguresResponse": (("figures", _STRUCT),),
}
_OPTIONAL: Final = ("score",)
_REPEATED: Final = ("feedback",)
_METHODS: Final = (
    ("ModelFeedback", "FeedbackRequest", "FeedbackResponse"),
    ("FeedbackFigures", "FeedbackFiguresRequest", "FeedbackFiguresResponse"),
)


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="nereid/feedback.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[Struct.DESCRIPTOR.file.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, 1):
            made = message.field.add(name=field, number=number, label=3 if field in _REPEATED else 1)
            made.type = _SCALARS.get(kind, FieldDescriptorProto.TYPE_MESSAGE)
            if kind not in _SCALARS:
                made.type_name = kind
            if field in _OPTIONAL:
                made.proto3_optional, made.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
    service = file.service.add(name=SERVICE.partition(".")[2])
    for method, request, response in _METHODS:
        service.method.add(
            name=method, input_type=f".{_PACKAGE}.{request}", output_type=f".{_PACKAGE}.{response}"
        )
    return file


FILE: Final = _file()
_POOL: Final = descriptor_pool.Default()  # where reflection looks
_POOL.AddSerializedFile(FILE.SerializeToString())


def _message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


FeedbackRecord: Final = _message_class("FeedbackRecord")
FeedbackRequest: Final = _message_class("FeedbackRequest")
FeedbackResponse: Final = _message_class("FeedbackResponse")
FeedbackFiguresRequest: Final = _message_class("FeedbackFiguresRequest")
FeedbackFiguresResponse: Final = _message_class("FeedbackFiguresResponse")


def record(fields: Mapping[str, Any]) -> Any:
    """Return a record as its message.

    Raises:
        ValueError: it has a field that no record has, or a value of another kind.
    """
    message = FeedbackRecord()
    try:
        for name, value in fields.items():
            if name in ("label", "outputs"):
                json_format.ParseDict(value, getattr(message, name))
            elif value is not None:
                setattr(message, name, value)
    except (AttributeError, TypeError, ValueError, json_format.Error) as error:
        raise ValueError(f"a record of feedback cannot be sent: {error}") from None
    return message


def plain(value: Any) -> Any:
    """Return a `google.protobuf.Struct` as JSON has it; protobuf knows doubles only."""
    return whole(json_format.MessageToDict(value))


def whole(value: Any) -> Any:
    """Return a plain value with whole numbers as integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [whole(each) for each in value]
    return {name: whole(each) for name, each in value.items()} if isinstance(value, dict) else value
