"""Constants and the error that both ends of a connection share."""

from typing import Final

PROTOCOL_VERSION: Final = 4
ALIGNMENT: Final = 64
"""Bytes: tensors begin at multiples of it, in a frame's payload and in shared memory."""


class ProtocolError(Exception):
    """The peer broke the protocol; the connection is closed, and no other one is affected."""
