"""Limits of an HTTP/1.1 server."""

from typing import NamedTuple


class HttpSettings(NamedTuple):
    """Limits of an HTTP front. Sizes are bytes.

    Attributes:
        max_body_bytes: a request body; the tensors in it are otherwise not limited.
        max_buffered_bytes: request bodies of all connections that came in more than one piece.
        max_head_bytes: a request line with its headers.
        max_connections: open connections; more are closed at once.
        read_timeout_s: how long a request may be on its way, a long one more by its bytes; 0: any time.
        idle_timeout_s: how long a connection may stay open between requests; 0: any time.
        write_timeout_s: how long a client may take none of a response that waits for it.
        write_buffer_bytes: response bytes that may wait in a connection before its reading stops.
        linger_s: how long to listen after a refusal, so that the client gets to read it.
        stream_responses: responses of a stream that may wait behind the write buffer; more cancel it.
        stream_bytes: tensor bytes of those responses; more cancel it.
    """

    max_body_bytes: int = (1 << 31) - 1
    max_buffered_bytes: int = 8 << 30
    max_head_bytes: int = 64 << 10
    max_connections: int = 16384
    read_timeout_s: float = 60.0
    idle_timeout_s: float = 300.0
    write_timeout_s: float = 60.0
    write_buffer_bytes: int = 1 << 20
    linger_s: float = 1.0
    stream_responses: int = 65536
    stream_bytes: int = 256 << 20
