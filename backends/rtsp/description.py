"""What the server knows of the backend `rtsp`."""

from typing import Final

from backends.description import BackendDescription

BACKENDS: Final = (
    BackendDescription(name="rtsp", backend="backend:RtspBackend", modules={"av": "PyAV"}, extra="video"),
)
