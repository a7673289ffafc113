"""The fronts of the in-process API: HTTP, gRPC and metrics as objects beside a server."""

from enum import IntEnum
from typing import Annotated as A
from typing import Any, ClassVar, Final

import msgspec
from pydantic import Field
from pydantic.dataclasses import dataclass

from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from app.settings.ports import check_ports
from nereid.engine.fronts import Fronts
from nereid.inprocess.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError, triton_errors
from nereid.inprocess.server import Server

_GRACE_S: Final = 1.0
_Port = A[int, Field(ge=0, le=65535)]
_Count = A[int, Field(ge=0)]
_Positive = A[int, Field(gt=0)]
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
    title: ClassVar[str]

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
        self._server = server
        self._open = self._ended = False

    def start(self) -> None:
        """Listen.

        Raises:
            AlreadyExistsError: it listens already.
            UnavailableError: the address cannot be used.
        """
        if self._open:
            raise AlreadyExistsError(f"{self.title} server is already running.")
        try:
            check_ports(self._settings)
            self._fronts.open()
        except (SettingsError, OSError, ValueError) as error:
            raise UnavailableError(str(error)) from None
        self._open, self._ended = True, False
        self._server.fronts.append(self.end)

    def stop(self) -> None:
        """Answer the requests on the open connections, and close.

        Raises:
            UnavailableError: it does not listen.
        """
        if not self._open:
            raise UnavailableError(f"{self.title} server is not running.")
        self._open = False
        if not self._ended:
            self._server.fronts.remove(self.end)
            self.end()

    def end(self) -> None:
        """Close, as `stop` and a server that stops before its fronts do."""
        self._ended = True
        self._fronts.close(_GRACE_S)

    def __enter__(self) -> "_Front":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            self.stop()


@dataclass
class _HttpOptions:
    """Where and how HTTP is served; by default to this machine alone. `thread_count` has no effect."""

    address: str = "127.0.0.1"
    port: _Port = 8000
    reuse_port: bool = False
    thread_count: _Positive = 8
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
    title = "HTTP"


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

    Without effect are compression, threads, the pools of allocations and responses, and the limits of pings
    without data.
    """

    address: str = "127.0.0.1"
    port: _Port = 8001
    reuse_port: bool = False
    use_ssl: bool = False
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""
    use_mutual_auth: bool = False
    keepalive_time_ms: _Count = 7_200_000
    keepalive_timeout_ms: _Count = 20_000
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: _Count = 2
    http2_min_recv_ping_interval_without_data_ms: _Count = 300_000
    http2_max_ping_strikes: _Count = 2
    max_connection_age_ms: _Count = 0
    max_connection_age_grace_ms: _Count = 0
    infer_compression_level: int = _CompressionLevel.NONE
    infer_thread_count: _Count = 2
    infer_allocation_pool_size: _Count = 8
    max_response_pool_size: _Count = 2_147_483_647
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
    title = "GRPC"


KServeGrpc.Server = KServeGrpc


@dataclass
class _MetricsOptions:
    """Where metrics are served; by default to this machine alone. `thread_count` has no effect."""

    address: str = "127.0.0.1"
    port: _Port = 8002
    thread_count: _Positive = 8

    def flags(self) -> dict[str, object]:
        """Return the flags of a server."""
        return {"allow_metrics": True, "metrics_address": self.address, "metrics_port": self.port}


class Metrics(_Front):
    """The metrics of a server, at `/metrics`."""

    Options = _MetricsOptions
    kind = _MetricsOptions
    title = "HTTP"
