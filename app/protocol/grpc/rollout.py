"""Messages of the gRPC service `nereid.RolloutService`, which docs/operate/rollout.proto describes.

The answer is a `google.protobuf.Struct` with the fields of the REST API's JSON.
"""

from typing import Any, Final

from google.protobuf import json_format

from app.core.rollout.history import RolloutHistory
from app.core.rollout.status import RolloutChange, RolloutStatus
from app.protocol.rollout import history_fields, parse_change, status_fields
from nereid_client.services.own import OwnService

_SERVICE: Final = OwnService(
    "RolloutService",
    {
        "RolloutStatusRequest": "model_name:string",
        "RolloutChangeRequest": "model_name:string action:string candidate:?int64 weight:?double "
        "spec:google.protobuf.Struct version:?int64 why:string user:string",
        "RolloutStatusResponse": "status:google.protobuf.Struct",
    },
    {
        "RolloutStatus": ("RolloutStatusRequest", "RolloutStatusResponse"),
        "RolloutChange": ("RolloutChangeRequest", "RolloutStatusResponse"),
        "RolloutHistory": ("RolloutStatusRequest", "RolloutStatusResponse"),
    },
)
SERVICE: Final = _SERVICE.name
FILE: Final = _SERVICE.file

RolloutStatusRequest: Final = _SERVICE.message("RolloutStatusRequest")
RolloutChangeRequest: Final = _SERVICE.message("RolloutChangeRequest")
RolloutStatusResponse: Final = _SERVICE.message("RolloutStatusResponse")
_OPTIONAL: Final = ("candidate", "weight", "version")


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
