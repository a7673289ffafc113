"""Settings of the HTTP and gRPC fronts, and of the console; sizes are in bytes."""

from typing import Annotated as A
from typing import Final

import msgspec

from app.core.files.certificates import Certificates, certificates
from app.protocol.forwarding import HeaderForwarder
from app.protocol.restrictions import GRPC_PREFIX, Restrictions, parse_restrictions
from app.settings.flag.flags import NEREID, Flag, SameAs, Section
from app.settings.flag.parsers import entries_of_file, gateway_paths, header_forwarder

MIB: Final = 1 << 20
INT_MAX: Final = 2**31 - 1
_ANY_ADDRESS: Final = "Address to listen on; 0.0.0.0 for all interfaces."


class TlsFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags that `Certificates` are made of."""

    use: A[bool, Flag("{}_use_ssl", "Serve over TLS.")] = False
    mutual: A[bool, Flag("{}_use_ssl_mutual", "Serve over TLS and require client certificates.")] = False
    cert: A[str, Flag("{}_server_cert", "PEM file of the server's certificate.")] = ""
    key: A[str, Flag("{}_server_key", "PEM file of the server's key.")] = ""
    root: A[str, Flag("{}_root_cert", "PEM file of the root certificate of clients.")] = ""


def _milliseconds(name: str, help: str, low: int = 0) -> Flag:
    """Return a flag in milliseconds of a field in seconds."""
    return Flag(name, help, low=low, high=INT_MAX, per_unit=1000)


def _tls(front: str) -> Section:
    def combine(flags: TlsFlags) -> Certificates | None:
        return certificates(front, flags.use, flags.mutual, (flags.cert, flags.key, flags.root))

    return Section(source=TlsFlags, combine=combine, prefix=front)


class RestrictionFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Flags that `Restrictions` are made of."""

    entries: A[
        tuple[str, ...], Flag("{}", "APIS:KEY=VALUE, APIs that require a header; may be repeated.")
    ] = ()
    files: A[
        tuple[str, ...],
        Flag("{}_file", "File of such lines, whose keys no process list shows; may be repeated.", NEREID),
    ] = ()


def _restricted(flag: str, noun: str, prefix: str = "") -> Section:
    """Return the section of restrictions; see `parse_restrictions`."""

    def combine(flags: RestrictionFlags) -> Restrictions:
        option = flag.replace("_", "-")
        lines = (line for path in flags.files for line in entries_of_file(path, f"--{option}-file"))
        return parse_restrictions((*flags.entries, *lines), option, noun, prefix)

    return Section(source=RestrictionFlags, combine=combine, prefix=flag)


class Http1Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an HTTP/1 server.

    Attributes:
        max_body_bytes: a request body; the tensors in it are otherwise not limited.
        max_buffered_bytes: request bodies of all connections that arrive in more than one piece.
        max_head_bytes: a request line with its headers.
        max_connections: open connections; more are closed at once.
        min_client_rate: bytes per second that a client sends or reads at least, over `read_timeout_s` or
            `write_timeout_s`.
        read_timeout_s: time to receive a request, more for one that comes at that rate; 0 for no limit.
        idle_timeout_s: time a connection may stay open between requests; 0 for no limit.
        write_timeout_s: time to read a response, more for a client that reads at that rate.
        write_buffer_bytes: response bytes buffered in a connection before its reading stops.
        linger_s: time to read on after a refusal, so that the client receives it.
        drain_idle_s: time to wait for a request on an open connection once the server stops.
        stream_responses: responses of a stream queued behind the write buffer; more cancel it.
        stream_bytes: tensor bytes of those responses; more cancel it.
        path_prefixes: what gateways have before the paths of requests, the longest first.
    """

    max_body_bytes: int = INT_MAX
    max_buffered_bytes: int = 8 << 30
    max_connections: A[int, SameAs("max_connections")] = 4096
    idle_timeout_s: A[
        float,
        Flag("http_idle_timeout_secs", "Seconds to keep an idle connection; 0 for ever.", NEREID, low=0),
    ] = 300
    read_timeout_s: A[
        float,
        Flag(
            "http_read_timeout_secs",
            "Seconds to receive a request, more for one that comes at the minimum rate; 0 for no limit.",
            NEREID,
            low=0,
        ),
    ] = 60
    min_client_rate: A[int, SameAs("min_client_rate")] = 4096
    max_head_bytes: A[
        int, Flag("http_max_header_size", "Maximum bytes of a request line and headers.", NEREID, low=1024)
    ] = 64 << 10
    write_timeout_s: float = 60.0
    write_buffer_bytes: int = 256 << 10
    linger_s: float = 1.0
    drain_idle_s: float = 5.0
    stream_responses: int = 65536
    stream_bytes: int = 256 * MIB
    path_prefixes: A[
        tuple[str, ...],
        Flag(
            "http_path_prefix",
            "Path that a gateway leaves before those of requests, as /api/predict/SERVICE; requests without "
            "it are served too; may be repeated.",
            NEREID,
            parse=gateway_paths,
            repeats=True,
        ),
    ] = ()


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the HTTP front.

    `max_input_size` limits the JSON of a request, a tensor in JSON, a raw input, and a compressed request
    once decompressed; binary tensors it does not limit.
    """

    enabled: A[bool, Flag("allow_http", "Serve HTTP.")] = True
    address: A[str, Flag("http_address", _ANY_ADDRESS)] = "127.0.0.1"
    port: A[int, Flag("http_port", "Port for HTTP; 0 for a free one.", low=0, high=65535)] = 8000
    reuse_port: A[bool, Flag("reuse_http_port", "Let several servers listen on the HTTP port.")] = False
    max_input_size: A[int, Flag("http_max_input_size", "Maximum bytes of a request's JSON.")] = 64 * MIB
    forwarder: A[
        HeaderForwarder | None,
        Flag(
            "http_header_forward_pattern",
            "Regular expression of the names of headers that become request parameters.",
            parse=header_forwarder("--http-header-forward-pattern"),
        ),
    ] = None
    restrictions: A[Restrictions, _restricted("http_restricted_api", "api")] = {}
    allow_origins: A[
        tuple[str, ...],
        Flag(
            "allow_origin",
            "Origin of web pages, as https://HOST, that may use all APIs but inference; may be repeated; "
            "'*' for all.",
            NEREID,
        ),
    ] = ()
    allow_hosts: A[
        tuple[str, ...],
        Flag(
            "allow_host",
            "Further host name of this server, which listens on loopback, for all APIs but inference; may be "
            "repeated; '*' for all.",
            NEREID,
        ),
    ] = ()
    certificates: A[Certificates | None, _tls("http")] = None
    tfserving: A[
        bool,
        Flag(
            "allow_tfserving",
            "Serve TensorFlow Serving's APIs too, on the ports of HTTP and gRPC, and so KServe's V1.",
            NEREID,
        ),
    ] = False
    torchserve: A[
        bool, Flag("allow_torchserve", "Serve TorchServe's inference API too, on the port of HTTP.", NEREID)
    ] = False
    http1: A[Http1Settings, Section()] = Http1Settings()


class Http2Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the HTTP/2 server.

    Attributes:
        max_message_size: of a request message, before and after decompression, and of a response message.
        max_decompressed_size: of a request message that becomes more than 10 times as large by decompression.
        max_buffered_bytes: of the request messages of all connections.
        max_streams: calls in flight on one connection.
        max_calls: calls in flight on all of them, streams included; more get RESOURCE_EXHAUSTED.
        max_connections: open connections; more are closed at once.
        max_header_size: of a call's headers.
        compression: whether and how hard to compress responses for clients that accept gzip.
        max_control_frames: frames a second, other than those of calls, that a connection may send, and 4 more
            for each response.
        max_resets: calls a second that a client may reset.
        linger_s: time to read on after a failure, so that the client receives its reason.
        min_client_rate: bytes per second that a client sends or reads at least, over `read_timeout_s` or
            `write_timeout_s`.
        read_timeout_s: time to receive a message, more for one that comes at that rate; 0 for no limit.
        write_timeout_s: time to read what waits, more for a client that reads at that rate.
        keepalive_s, keepalive_timeout_s, keepalive_without_calls: when to ping a client, and how long to
            wait for its acknowledgement.
        min_ping_interval_s, max_ping_strikes: how often a client may ping, and how often too early.
        max_age_s, max_age_grace_s: when to close a connection; 0 for never.
    """

    max_buffered_bytes: int = 8 << 30
    max_streams: int = 4096
    max_calls: A[int, SameAs("max_pending_requests")] = 65536
    max_connections: A[int, SameAs("max_connections")] = 4096
    max_header_size: int = 64 << 10
    min_client_rate: A[int, SameAs("min_client_rate")] = 4096
    read_timeout_s: A[
        float,
        Flag(
            "grpc_read_timeout_secs",
            "Seconds to receive a message, more for one that comes at the minimum rate; 0 for no limit.",
            NEREID,
            low=0,
        ),
    ] = 60
    compression: A[
        str,
        Flag(
            "grpc_infer_response_compression_level",
            "Compression of responses.",
            choices=("none", "low", "medium", "high"),
        ),
    ] = "none"
    max_control_frames: int = 20_000
    max_resets: int = 1000
    linger_s: float = 1.0
    write_timeout_s: float = 60.0
    keepalive_s: A[float, _milliseconds("grpc_keepalive_time", "Milliseconds between pings.", low=1)] = 7200.0
    keepalive_timeout_s: A[
        float,
        _milliseconds(
            "grpc_keepalive_timeout", "Milliseconds to wait for the acknowledgement of a ping.", low=1
        ),
    ] = 20.0
    keepalive_without_calls: A[
        bool, Flag("grpc_keepalive_permit_without_calls", "Ping clients without calls in flight.")
    ] = False
    min_ping_interval_s: A[
        float,
        _milliseconds(
            "grpc_http2_min_recv_ping_interval_without_data",
            "Milliseconds required between pings of a client.",
        ),
    ] = 300.0
    max_ping_strikes: A[
        int,
        Flag(
            "grpc_http2_max_ping_strikes",
            "Pings tolerated that come too early; 0 for any number.",
            low=0,
            high=INT_MAX,
        ),
    ] = 2
    max_age_s: A[
        float,
        _milliseconds("grpc_max_connection_age", "Milliseconds until a connection is closed; 0 for never."),
    ] = 0.0
    max_age_grace_s: A[
        float,
        _milliseconds(
            "grpc_max_connection_age_grace", "Milliseconds then left to calls in flight; 0 for no limit."
        ),
    ] = 0.0
    max_message_size: A[
        int, Flag("grpc_max_message_size", "Maximum bytes of a message.", NEREID, low=1, high=INT_MAX)
    ] = INT_MAX
    max_decompressed_size: A[
        int,
        Flag(
            "grpc_max_decompressed_size",
            "Maximum bytes, decompressed, of a message that is compressed to less than a tenth.",
            NEREID,
            low=1,
            high=INT_MAX,
        ),
    ] = 64 * MIB


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one gRPC stream.

    Attributes:
        requests: requests in flight; also the number of queued responses at which reading pauses.
        responses: queued responses at which a decoupled request is cancelled.
        byte_size: bytes of queued responses at which a decoupled request is cancelled.
    """

    requests: int = 1024
    responses: int = 65536
    byte_size: int = 256 * MIB


class GrpcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the gRPC front."""

    enabled: A[bool, Flag("allow_grpc", "Serve gRPC.")] = True
    address: A[str, Flag("grpc_address", _ANY_ADDRESS)] = "127.0.0.1"
    port: A[int, Flag("grpc_port", "Port for gRPC; 0 for a free one.", low=0, high=65535)] = 8001
    reuse_port: A[bool, Flag("reuse_grpc_port", "Let several servers listen on the gRPC port.")] = False
    forwarder: A[
        HeaderForwarder | None,
        Flag(
            "grpc_header_forward_pattern",
            "Regular expression of the names of metadata that become request parameters.",
            parse=header_forwarder("--grpc-header-forward-pattern"),
        ),
    ] = None
    restrictions: A[
        Restrictions, _restricted("grpc_restricted_protocol", "protocol", prefix=GRPC_PREFIX)
    ] = {}
    certificates: A[Certificates | None, _tls("grpc")] = None
    http2: A[Http2Settings, Section()] = Http2Settings()
    reflection: A[bool, Flag("grpc_reflection", "Serve gRPC's reflection protocol.", NEREID)] = False
    # It chose between two gRPC servers, of which "http2" is left; accepted for one release.
    front: A[
        str, Flag("grpc_front", "The gRPC server.", NEREID, choices=("http2", "grpcio"), unused=True)
    ] = "http2"
    tfserving: A[bool, SameAs("allow_tfserving")] = False
    stream: StreamLimits = StreamLimits()


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The console that is started beside the server, as a process of its own."""

    enabled: A[
        bool, Flag("allow_console", "Serve the console for browsers, by a process of its own.", NEREID)
    ] = False
    address: A[
        str,
        Flag(
            "console_address",
            "Address for the console; with one that the network reaches it serves holders of tokens only.",
            NEREID,
        ),
    ] = "127.0.0.1"
    port: A[
        int, Flag("console_port", "Port for the console; 0 for a free one.", NEREID, low=0, high=65535)
    ] = 8003
    certificates: A[Certificates | None, _tls("console")] = None
    grafana: A[
        str,
        Flag("console_grafana", "Address of Grafana, linked by the console, as http://HOST:3000.", NEREID),
    ] = ""

    @property
    def scheme(self) -> str:
        """The beginning of its address: "http" or "https"."""
        return "https" if self.certificates else "http"
