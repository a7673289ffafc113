"""Messages of the gRPC service `nereid.DriftService`, which docs/operate/drift.proto describes.

The answer is a `google.protobuf.Struct` with the fields of the REST API's JSON.
"""

from typing import Any, Final

import msgspec

from app.core.drift.status import DriftStatus
from nereid_client.services.own import OwnService

_SERVICE: Final = OwnService(
    "DriftService",
    {
        "DriftStatusRequest": "model_name:string model_version:string",
        "DriftStatusResponse": "status:google.protobuf.Struct",
    },
    {"DriftStatus": ("DriftStatusRequest", "DriftStatusResponse")},
)
SERVICE: Final = _SERVICE.name
FILE: Final = _SERVICE.file

DriftStatusRequest: Final = _SERVICE.message("DriftStatusRequest")
DriftStatusResponse: Final = _SERVICE.message("DriftStatusResponse")


def encode_status(status: DriftStatus) -> Any:
    """Return a `DriftStatusResponse`."""
    response = DriftStatusResponse()
    response.status.update(msgspec.to_builtins(status, str_keys=True, builtin_types=()))
    return response
