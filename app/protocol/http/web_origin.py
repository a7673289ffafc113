"""Refusal of requests that a web page on another site makes through a visitor's browser. No I/O.

A page may POST to a server on loopback without asking first, and with DNS rebinding it also reads the
responses. Browsers send the page's site as Origin and the name that they resolved as Host; other clients send
no Origin.
"""

from typing import Final

from app.core.system.addresses import LOCALHOST, ip_address, is_loopback

_ANY: Final = "*"


class WebOriginPolicy:
    """Decides by Origin and Host whether a request may use the management APIs.

    Args:
        address: address that the server listens on.
        origins: further origins that are allowed, as `https://host:port`; "*" allows all.
        hosts: names of the server besides localhost, without a port; "*" allows all.
    """

    def __init__(self, address: str, origins: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> None:
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        self._hosts = {host.lower() for host in hosts}
        # Elsewhere any name may be the server's: only its resolver knows.
        self._checks_host = is_loopback(address) and _ANY not in hosts

    def refusal(self, origin: str | None, host: str | None) -> str:
        """Return why a request with these headers is refused; "" if it is not."""
        host = (host or "").lower()
        if origin is not None and not self._accepts_origin(origin.lower(), host):
            return f"Origin '{origin}' is not this server's and not allowed by --allow-origin"
        if self._checks_host and host and not self._accepts_host(_without_port(host)):
            return f"Host '{host}' is no address or name of this server and not allowed by --allow-host"
        return ""

    def _accepts_origin(self, origin: str, host: str) -> bool:
        own = bool(host) and origin.partition("://")[2] == host
        return own or origin in self._origins or _ANY in self._origins

    def _accepts_host(self, name: str) -> bool:
        # Browsers resolve names below localhost to loopback themselves: no DNS server can rebind them.
        local = name == LOCALHOST or name.endswith(f".{LOCALHOST}")
        return local or name in self._hosts or ip_address(name) is not None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")
