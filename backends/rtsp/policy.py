"""Which addresses of a client a model may open: allow-lists of schemes, hosts and ports, and a directory.

A URL from a client would otherwise have the server connect for it to whatever the server can reach. So
nothing is allowed that the model's configuration does not name, and what is connected to is the address
that was checked: a name is resolved once, here, and not again by what opens the connection.
"""

import ipaddress
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from app.core.errors import InferError, invalid_arg, not_found, unavailable

DEFAULT_PORTS: Final = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}
SCHEMES: Final = ("file", *DEFAULT_PORTS)
_MAX_URL: Final = 2048
_ANY_PORT: Final = "*"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Sequence[str]]
"""Returns the IP addresses of a host name, for connections to a port; raises OSError."""


class Endpoint(NamedTuple):
    """A checked place in the network: addresses to connect to, in turn, and what the URL calls it."""

    scheme: str
    addresses: tuple[str, ...]
    host: str
    port: int


class _Rule(NamedTuple):
    """An entry of `allowed_hosts`: a network or a name, "*.x" for those below x; a port, None for any or 0.

    Port 0 is the default port of the URL's scheme.
    """

    network: Network | None
    name: str
    port: int | None

    def allows_port(self, scheme: str, port: int) -> bool:
        return self.port is None or port == (self.port or DEFAULT_PORTS[scheme])

    def names(self, host: str) -> bool:
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        return bool(self.name) and host == self.name


def _resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class AllowList:
    """Checks addresses against what a model's configuration allows."""

    def __init__(
        self,
        schemes: Iterable[str],
        hosts: Iterable[str],
        directory: Path | None,
        resolve: Resolve = _resolve,
    ) -> None:
        """
        Args:
            schemes: those of `SCHEMES` that are allowed.
            hosts: `HOST`, `HOST:PORT` or `HOST:*`; HOST is a name, `*.DOMAIN`, an IP address or a network
                such as 10.0.0.0/8, IPv6 in brackets. Without a port, the default one of the URL's scheme.
            directory: where files may lie; None for none.
            resolve: looks names up.

        Raises:
            InferError: INVALID_ARG for an entry that is none of these.
        """
        self._schemes = frozenset(schemes)
        unknown = sorted(self._schemes - {*SCHEMES})
        if unknown:
            raise invalid_arg(f"parameter 'allowed_schemes': '{unknown[0]}' is none of {', '.join(SCHEMES)}")
        self._rules = [_rule(entry) for entry in hosts]
        self._directory = directory
        self._resolve = resolve

    def split(self, url: str) -> SplitResult:
        """Return the parts of a URL whose scheme is allowed; a text without a scheme is a file.

        Raises:
            InferError: INVALID_ARG for a malformed URL or a scheme that is not allowed.
        """
        # Control characters could add lines to what is sent to a server.
        if not 0 < len(url) <= _MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
            raise invalid_arg(f"input 'URL': expected 1 to {_MAX_URL} printable ASCII characters, no spaces")
        try:
            parts = urlsplit(url if "://" in url else f"file:{url.removeprefix('file:')}")
            _ = parts.port
        except ValueError as error:
            raise invalid_arg(f"input 'URL': {error}") from None
        if parts.scheme not in self._schemes:
            allowed = ", ".join(sorted(self._schemes)) or "none"
            raise invalid_arg(
                f"input 'URL': scheme '{parts.scheme}' is not allowed; allowed_schemes of the model:"
                f" {allowed}"
            )
        return parts

    def endpoint(self, parts: SplitResult) -> Endpoint:
        """Return where to connect to for a URL of the network.

        A name must be allowed by name. It may resolve to any address but those of this machine, of its link
        and the like (`_is_special`), which must be allowed as addresses: a name that an attacker's DNS
        answers must not lead to services that listen on loopback only, or to a cloud's metadata.

        Raises:
            InferError: INVALID_ARG for what is not allowed, UNAVAILABLE for a name that cannot be resolved.
        """
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        rules = [rule for rule in self._rules if rule.allows_port(parts.scheme, port)]
        literal = _ip(host)
        if literal is not None:
            if not _contains(rules, literal):
                raise _denied(host, port)
            return Endpoint(parts.scheme, (str(literal),), host, port)
        if not host or not any(rule.names(host) for rule in rules):
            raise _denied(host, port)
        return Endpoint(parts.scheme, self._addresses(host, port, rules), host, port)

    def _addresses(self, host: str, port: int, rules: Sequence[_Rule]) -> tuple[str, ...]:
        try:
            found = self._resolve(host, port)
        except OSError as error:
            raise unavailable(f"host '{host}' cannot be resolved: {error.strerror or error}") from None
        addresses = [address for address in map(_ip, found) if address is not None]
        allowed = [each for each in addresses if not _is_special(each) or _contains(rules, each)]
        if allowed:
            return tuple(str(address) for address in allowed)
        raise invalid_arg(
            f"host '{host}' resolves to {', '.join(found) or 'nothing'}, which the model's allowed_hosts must"
            " list as an address"
        )

    def file(self, parts: SplitResult) -> Path:
        """Return the path of a regular file inside the directory, links resolved.

        Raises:
            InferError: INVALID_ARG outside the directory or where there is none, NOT_FOUND for no such file.
        """
        if self._directory is None:
            raise invalid_arg("the model opens no files: its parameter 'media_directory' is not set")
        if parts.netloc:
            raise invalid_arg("input 'URL': a file is file:///PATH, or a path within media_directory")
        name = unquote(parts.path)
        root = self._directory.resolve()
        try:
            path = (root / name).resolve()
        except (OSError, RuntimeError, ValueError):  # a circle of links, a NUL
            raise invalid_arg(f"input 'URL': '{name}' is no path") from None
        if not path.is_relative_to(root):
            raise invalid_arg(f"file '{name}' is outside the model's media_directory")
        if not path.is_file():  # no pipe: reading one would wait for its writer
            raise not_found(f"there is no file '{name}' in the model's media_directory")
        return path


def open_file(path: Path) -> int:
    """Open a path that `AllowList.file` has returned, for reading; return its descriptor.

    Raises:
        OSError: it has become a link, or cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def redacted(parts: SplitResult) -> str:
    """Return a URL without its user name, password and query, for messages and logs."""
    host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
    return f"{host}{parts.path}"


def _denied(host: str, port: int) -> InferError:
    return invalid_arg(f"host '{host}' with port {port} is not in the model's allowed_hosts")


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, an IPv6 one that stands for an IPv4 one as the latter; None for a name.

    Only the usual notation: 127.1, 0x7f000001 or 2130706433 would be names, and are resolved and checked.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _is_special(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
        # IPv4 addresses in the clothes of IPv6: 6to4, Teredo; NAT64's are reserved.
        or getattr(address, "sixtofour", None) is not None
        or getattr(address, "teredo", None) is not None
        or str(address) in _METADATA
    )


_METADATA: Final = ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")
"""Metadata services of clouds that are not link-local."""


def _contains(rules: Iterable[_Rule], address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return any(rule.network is not None and address in rule.network for rule in rules)


def _rule(entry: str) -> _Rule:
    host, port = _split_port(entry)
    try:
        number = None if port == _ANY_PORT else int(port or 0)
    except ValueError:
        number = -1
    if not host or not (number is None or 0 <= number < 65536):
        raise invalid_arg(f"parameter 'allowed_hosts': '{entry}' is no HOST, HOST:PORT or HOST:*")
    try:
        return _Rule(ipaddress.ip_network(host, strict=False), "", number)
    except ValueError:
        pass
    if "/" in host or "*" in host.removeprefix("*.") or host == "*.":
        raise invalid_arg(f"parameter 'allowed_hosts': '{host}' is no name, address or network")
    return _Rule(None, host.lower().rstrip("."), number)


def _split_port(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = entry.partition(":")
    return host, port
