"""Settings of the gRPC server."""

from dataclasses import dataclass, field

from app.core.certificates import Certificates
from app.ingress.grpc.stream import StreamLimits
from app.ingress.http2.settings import Http2Settings
from app.protocol.forwarding import HeaderForwarder
from app.protocol.grpc.v2 import MAX_MESSAGE_BYTES
from app.protocol.restrictions import Restrictions


@dataclass(frozen=True)
class GrpcSettings:
    """Settings of the gRPC server; the keepalive ones have tritonserver's flags and defaults.

    Attributes:
        concurrent_rpcs: RPCs in flight, streams included; further ones get RESOURCE_EXHAUSTED.
        max_connections: open connections; more are closed at once.
        stream: bounds of one ModelStreamInfer call.
        max_message_bytes: of a request or a response.
        compression_level: none, low, medium or high; all but none compress responses alike.
        keepalive_time_ms, keepalive_timeout_ms: when to ping an idle client, and how long to wait for it.
        keepalive_without_calls: whether to ping a client without an RPC in flight.
        min_ping_interval_ms, max_ping_strikes: how often a client may ping, and how often too early.
        max_connection_age_ms, max_connection_age_grace_ms: when to close a connection; 0 for never.
        certificates: files for TLS; None for none.
        restrictions: categories of RPCs that need metadata.
        forwarder: makes request parameters of metadata; None for none.
        reflection: whether to serve gRPC's reflection protocol.
    """

    concurrent_rpcs: int = 65536
    max_connections: int = 16384
    stream: StreamLimits = field(default_factory=StreamLimits)
    max_message_bytes: int = MAX_MESSAGE_BYTES
    compression_level: str = "none"
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_without_calls: bool = False
    min_ping_interval_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0
    certificates: Certificates | None = None
    restrictions: Restrictions = field(default_factory=dict)
    forwarder: HeaderForwarder | None = None
    reflection: bool = False

    def http2_limits(self) -> Http2Settings:
        """Return the limits of `Http2Server`."""
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
