"""What the server knows of the backend `bytetrack`."""

from typing import Final

from backends.description import BackendDescription

BACKENDS: Final = (
    BackendDescription(
        name="bytetrack", backend="backend:ByteTrackBackend", modules={"lap": "lap"}, extra="video"
    ),
)
