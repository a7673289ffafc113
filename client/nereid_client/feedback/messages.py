"""Messages of the gRPC service `nereid.FeedbackService`, which docs/use/feedback.proto describes.

Client and server have them from here. Needs protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import json_format

from nereid_client.services.own import OwnService

_SERVICE: Final = OwnService(
    "FeedbackService",
    {
        "FeedbackRecord": "id:string row:string score:?double label:google.protobuf.Value "
        "outputs:google.protobuf.Struct output:string",
        "FeedbackRequest": "model_name:string model_version:string feedback:*FeedbackRecord",
        "FeedbackResponse": "model_name:string accepted:int64",
        "FeedbackFiguresRequest": "model_name:string",
        "FeedbackFiguresResponse": "figures:google.protobuf.Struct",
    },
    {
        "ModelFeedback": ("FeedbackRequest", "FeedbackResponse"),
        "FeedbackFigures": ("FeedbackFiguresRequest", "FeedbackFiguresResponse"),
    },
)
SERVICE: Final = _SERVICE.name
FILE: Final = _SERVICE.file

FeedbackRecord: Final = _SERVICE.message("FeedbackRecord")
FeedbackRequest: Final = _SERVICE.message("FeedbackRequest")
FeedbackResponse: Final = _SERVICE.message("FeedbackResponse")
FeedbackFiguresRequest: Final = _SERVICE.message("FeedbackFiguresRequest")
FeedbackFiguresResponse: Final = _SERVICE.message("FeedbackFiguresResponse")


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
