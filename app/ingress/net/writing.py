"""Writing several buffers to a connection, within its limit."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from app.core.tensors import Buffer

_UNBOUNDED: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
"""Whether `writelines` of Python's own transports never pauses its protocol (CVE-2024-12254)."""


def write_parts(transport: asyncio.WriteTransport, parts: Sequence[Buffer]) -> None:
    """Write buffers one after the other; the protocol is paused if the client does not read them."""
    if _UNBOUNDED and isinstance(transport, asyncio.Transport):  # uvloop's are none
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)
