"""Limits of the HTTP/2 server."""

from typing import NamedTuple


class Http2Settings(NamedTuple):
    """Limits of the server; times are seconds, sizes bytes.

    Attributes:
        max_message_size: of a request message, before and after decompression.
        max_buffered_bytes: of the request messages of all connections.
        max_streams: calls under way on one connection.
        max_calls: calls under way on all of them.
        max_connections: open connections; more are closed at once.
        max_header_size: of a call's headers.
        compress: whether responses are compressed for clients that read gzip.
        max_control_frames: frames a second, other than those of calls, that a connection may send.
        max_resets: calls a second that a client may reset.
        linger_s: how long to listen after a failure, so that the client gets to read why.
        write_timeout_s: how long a client may take nothing of what waits for it.
        keepalive_s, keepalive_timeout_s, keepalive_without_calls, min_ping_interval_s, max_ping_strikes,
        max_age_s, max_age_grace_s: as tritonserver's flags say, in seconds.
    """

    max_message_size: int = 2**31 - 1
    max_buffered_bytes: int = 8 << 30
    max_streams: int = 4096
    max_calls: int = 65536
    max_connections: int = 16384
    max_header_size: int = 64 << 10
    compress: bool = False
    max_control_frames: int = 20_000
    max_resets: int = 1000
    linger_s: float = 1.0
    write_timeout_s: float = 60.0
    keepalive_s: float = 7200.0
    keepalive_timeout_s: float = 20.0
    keepalive_without_calls: bool = False
    min_ping_interval_s: float = 300.0
    max_ping_strikes: int = 2
    max_age_s: float = 0.0
    max_age_grace_s: float = 0.0
