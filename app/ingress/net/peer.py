"""The address of a client."""

import asyncio


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return a client's address and port, as `127.0.0.1:1234` or `[::1]:1234`; "" if there is none."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return ""
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
