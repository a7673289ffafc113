"""The fronts of the in-process API: HTTP, gRPC and metrics as objects beside a server."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final

import msgspec

from app.engine.fronts import Fronts
from app.inprocess.errors import InvalidArgumentError, UnavailableError, triton_errors
from app.inprocess.server import Server
from app.settings.errors import SettingsError
from app.settings.load import from_args
from app.settings.ports import check_ports

_GRACE_S: Final = 1.0
_CLOSED: Final = {
    "allow_http": False,
    "allow_grpc": False,
    "allow_metrics": False,
    "allow_sagemaker": False,
    "allow_vertex_ai": False,
}


class _Front:
    """One front; `with` starts and stops it."""

    kind: ClassVar[Any]

    def __init__(self, server: Server, options: Any = None) -> None:
        """Make a front of a started server.

        Raises:
            InvalidArgumentError: the options are those of another front, or cannot be used.
        """
        options = self.kind() if options is None else options
        if not isinstance(options, self.kind):
            raise InvalidArgumentError(
                f"Incorrect type for options. options argument must be of type {self.kind.__qualname__}"
            )
        with triton_errors():
            paths = list(server.engine.settings.repository.paths)
            made = from_args({"model_repository": paths, **_CLOSED, **options.flags()})
        settings = msgspec.structs.replace(
            server.engine.settings, http=made.http, grpc=made.grpc, metrics=made.metrics, clouds=made.clouds
        )
        self._settings = settings
        self._fronts = Fronts(server.engine, settings)

    def start(self) -> None:
        """Listen.

        Raises:
            UnavailableError: the address cannot be used.
        """
        try:
            check_ports(self._settings)
            self._fronts.open()
        except (SettingsError, OSError, ValueError) as error:
            raise UnavailableError(str(error)) from None

    def stop(self) -> None:
        """Answer the requests on the open connections, and close."""
        self._fronts.close(_GRACE_S)

    def __enter__(self) -> "_Front":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass
class _HttpOptions:
    """Where and how HTTP is served; by default to this machine alone. `thread_count` has no effect."""

    address: str = "127.0.0.1"
    port: int = 8000
    reuse_port: bool = False
    thread_count: int = 8
    header_forward_pattern: str = ""

    def flags(self) -> dict[str, object]:
        """Return the flags of a server."""
        return {
            "allow_http": True,
            "http_address": self.address,
            "http_port": self.port,
            "reuse_http_port": self.reuse_port,
            "http_header_forward_pattern": self.header_forward_pattern,
        }


class KServeHttp(_Front):
    """The HTTP API of a server."""

    Options = _HttpOptions
    Server: ClassVar[type["KServeHttp"]]
    kind = _HttpOptions


KServeHttp.Server = KServeHttp
"""The name that older programs use."""


class _CompressionLevel(IntEnum):
    """How responses are compressed; accepted, without effect: a response is compressed as its client asks."""

    NONE = 0
    LOW = 1
    MED = 2
    HIGH = 3


@dataclass
class _GrpcOptions:
    """Where and how gRPC is served; by default to this machine alone.

    Without effect are compression, the pool of allocations, and the limits of pings without data.
    """

    address: str = "127.0.0.1"
    port: int = 8001
    reuse_port: bool = False
    use_ssl: bool = False
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""
    use_mutual_auth: bool = False
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = 2
    http2_min_recv_ping_interval_without_data_ms: int = 300_000
    http2_max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0
    infer_compression_level: int = _CompressionLevel.NONE
    infer_allocation_pool_size: int = 8
    forward_header_pattern: str = ""

    def flags(self) -> dict[str, object]:
        """Return the flags of a server."""
        return {
            "allow_grpc": True,
            "grpc_address": self.address,
            "grpc_port": self.port,
            "reuse_grpc_port": self.reuse_port,
            "grpc_use_ssl": self.use_ssl,
            "grpc_use_ssl_mutual": self.use_mutual_auth,
            "grpc_server_cert": self.server_cert,
            "grpc_server_key": self.server_key,
            "grpc_root_cert": self.root_cert,
            "grpc_keepalive_time": self.keepalive_time_ms,
            "grpc_keepalive_timeout": self.keepalive_timeout_ms,
            "grpc_keepalive_permit_without_calls": self.keepalive_permit_without_calls,
            "grpc_http2_min_recv_ping_interval_without_data": (
                self.http2_min_recv_ping_interval_without_data_ms
            ),
            "grpc_http2_max_ping_strikes": self.http2_max_ping_strikes,
            "grpc_max_connection_age": self.max_connection_age_ms or None,
            "grpc_max_connection_age_grace": self.max_connection_age_grace_ms or None,
            "grpc_header_forward_pattern": self.forward_header_pattern,
        }


class KServeGrpc(_Front):
    """The gRPC API of a server."""

    Grpc_compression_level = _CompressionLevel
    Options = _GrpcOptions
    Server: ClassVar[type["KServeGrpc"]]
    kind = _GrpcOptions


KServeGrpc.Server = KServeGrpc


@dataclass
class _MetricsOptions:
    """Where metrics are served; by default to this machine alone. `thread_count` has no effect."""

    address: str = "127.0.0.1"
    port: int = 8002
    thread_count: int = 8

    def flags(self) -> dict[str, object]:
        """Return the flags of a server."""
        return {"allow_metrics": True, "metrics_address": self.address, "metrics_port": self.port}


class Metrics(_Front):
    """The metrics of a server, at `/metrics`."""

    Options = _MetricsOptions
    kind = _MetricsOptions
