"""The HTTP/2 flow control windows that a server offers its clients."""

from typing import Final

from app.protocol.grpc import http2 as h2
from app.settings.fronts import Http2Settings

STREAM_WINDOW: Final = 4 << 20
"""Request bytes that a client may send on a stream before it needs flow-control credit."""
CONNECTION_WINDOW: Final = 64 << 20
"""Request bytes that a client may send on all of them."""
CREDIT_FROM: Final = CONNECTION_WINDOW // 2
"""Received bytes above which the client gets credit for them."""
MAX_FRAME: Final = 1 << 20


def first_frames(settings: Http2Settings) -> bytes:
    """Return what a server sends first: its settings, and the window of the connection."""
    values = {
        h2.MAX_CONCURRENT_STREAMS: settings.max_streams,
        h2.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        h2.MAX_FRAME_SIZE: MAX_FRAME,
        h2.MAX_HEADER_LIST_SIZE: settings.max_header_size,
    }
    return h2.settings_frame(values) + h2.window_update(0, CONNECTION_WINDOW - h2.DEFAULT_WINDOW)
