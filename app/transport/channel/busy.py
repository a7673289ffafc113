"""Whether a replica that answers nothing is busy executing its model, as the process that watches it says.

A model's code may hold the interpreter of its process for minutes: that process answers no heartbeat then,
and is all right. Another one watches it, and knows since when it executes.
"""

from typing import Final

from app.core.errors import InferError
from app.transport.channel.client import Channel
from app.transport.settings import TransportSettings

BUSY: Final = "busy"
"""The control verb; its answer is the seconds for which a replica has been executing, 0 when it does not."""
_ANSWER_S: Final = 2.0
_SETTINGS: Final = TransportSettings(arena_bytes=0, connect_timeout=_ANSWER_S)


async def ask_busy(address: str, key: bytes) -> bool:
    """Return whether the replica executes, as what listens at this address says."""
    try:
        channel = await Channel.connect(address, key, _SETTINGS)
        try:
            return bool(await channel.control(BUSY, None, _ANSWER_S))
        finally:
            channel.close()
    except (InferError, OSError, TimeoutError):
        return False
