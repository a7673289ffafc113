"""Settings of the gRPC server, and what they are called by the gRPC library."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from app.core.certificates import Certificates
from app.ingress.grpc.stream import StreamLimits
from app.ingress.http2.server import Http2Settings
from app.protocol.forwarding import HeaderForwarder
from app.protocol.grpc.v2 import MAX_MESSAGE_BYTES
from app.protocol.restrictions import Restrictions

# GRPC_COMPRESS_LEVEL_*. A level, not an algorithm, so that a client gets what it understands.
_LEVELS: Final[Mapping[str, int]] = {"low": 1, "medium": 2, "high": 3}


@dataclass(frozen=True)
class GrpcSettings:
    """Settings of the gRPC server; the keepalive ones have tritonserver's flags and defaults.

    Attributes:
        http2: serve HTTP/2 by `Http2Server` rather than by grpc.aio.
        concurrent_rpcs: RPCs under way at once, streams included; further ones get RESOURCE_EXHAUSTED.
        max_connections: open connections; more are closed at once. grpc.aio knows no such bound.
        stream: bounds of one ModelStreamInfer call.
        max_message_bytes: of a request or a response.
        compression_level: how hard responses are compressed: none, low, medium or high.
        keepalive_time_ms, keepalive_timeout_ms: when to ping an idle client, and how long to wait for it.
        keepalive_without_calls: whether to ping a client that has no RPC under way.
        max_pings_without_data, min_ping_interval_ms, max_ping_strikes: how many pings each side may send.
        max_connection_age_ms, max_connection_age_grace_ms: when to close a connection; 0 for never.
        certificates: files for TLS; None for none.
        restrictions: categories of RPCs that need metadata.
        forwarder: makes request parameters of metadata; None for none.
        reflection: whether to serve gRPC's reflection protocol.
    """

    http2: bool = True
    concurrent_rpcs: int = 65536
    max_connections: int = 16384
    stream: StreamLimits = field(default_factory=StreamLimits)
    max_message_bytes: int = MAX_MESSAGE_BYTES
    compression_level: str = "none"
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_without_calls: bool = False
    max_pings_without_data: int = 2
    min_ping_interval_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0
    certificates: Certificates | None = None
    restrictions: Restrictions = field(default_factory=dict)
    forwarder: HeaderForwarder | None = None
    reflection: bool = False

    def channel_options(self, reuse_port: bool) -> list[tuple[str, int]]:
        """The options of the server's channels."""
        options = [
            ("grpc.so_reuseport", int(reuse_port)),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.keepalive_time_ms", self.keepalive_time_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", int(self.keepalive_without_calls)),
            ("grpc.http2.max_pings_without_data", self.max_pings_without_data),
            ("grpc.http2.min_ping_interval_without_data_ms", self.min_ping_interval_ms),
            ("grpc.http2.max_ping_strikes", self.max_ping_strikes),
        ]
        if self.compression_level != "none":
            options.append(("grpc.default_compression_level", _LEVELS[self.compression_level]))
        if self.max_connection_age_ms:
            options.append(("grpc.max_connection_age_ms", self.max_connection_age_ms))
        if self.max_connection_age_grace_ms:
            options.append(("grpc.max_connection_age_grace_ms", self.max_connection_age_grace_ms))
        return options

    def http2_limits(self) -> Http2Settings:
        """The same for `Http2Server`."""
        return Http2Settings(
            max_message_size=self.max_message_bytes,
            max_calls=self.concurrent_rpcs,
            max_connections=self.max_connections,
            compress=self.compression_level != "none",
            keepalive_s=self.keepalive_time_ms / 1000,
            keepalive_timeout_s=self.keepalive_timeout_ms / 1000,
            keepalive_without_calls=self.keepalive_without_calls,
            min_ping_interval_s=self.min_ping_interval_ms / 1000,
            max_ping_strikes=self.max_ping_strikes,
            max_age_s=self.max_connection_age_ms / 1000,
            max_age_grace_s=self.max_connection_age_grace_ms / 1000,
        )

    def credentials(self) -> Any:
        """What a secure port needs; None without certificates.

        Raises:
            OSError: a file cannot be read.
        """
        files = self.certificates
        if files is None:
            return None
        return grpc.ssl_server_credentials(
            [(_read(files.key), _read(files.cert))],
            _read(files.root) if files.root else None,
            require_client_auth=bool(files.root),
        )


def _read(path: str) -> bytes:
    return Path(path).read_bytes()
