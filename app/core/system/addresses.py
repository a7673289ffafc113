"""IP addresses and host names as users write them."""

import ipaddress
from typing import Final

LOCALHOST: Final = "localhost"


def ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a text is; None for a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches a socket that is bound to an address."""
    number = ip_address(address.strip("[]"))
    return address == LOCALHOST if number is None else number.is_loopback
