"""Metas of the other frames: released slabs, offered arenas, control calls and their replies."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from app.core.encoding import to_msgpack
from app.core.errors import Failure
from app.transport.memory.lending import Offer
from app.transport.protocol import ProtocolError
from app.transport.wire.frames import Frame
from app.transport.wire.messages import UNDECODABLE

_T = TypeVar("_T")


class _WireControl(msgspec.Struct, array_like=True):
    verb: str
    argument: Any = None


_decode_failure = msgspec.msgpack.Decoder(Failure).decode
_decode_control = msgspec.msgpack.Decoder(_WireControl).decode
_decode_any = msgspec.msgpack.Decoder().decode
_decode_offer = msgspec.msgpack.Decoder(Offer).decode
_decode_offsets = msgspec.msgpack.Decoder(list[int]).decode


def encode_release(offsets: list[int]) -> bytes:
    """Encode the meta of a RELEASE frame."""
    return to_msgpack(offsets)


def decode_release(frame: Frame) -> list[int]:
    """Read a RELEASE frame.

    Raises:
        ProtocolError: the frame is malformed.
    """
    return _decoded(_decode_offsets, frame, "release")


def encode_control(verb: str, argument: Any) -> bytes:
    """Encode the meta of a CONTROL frame.

    Raises:
        TypeError: the argument has no msgpack encoding.
    """
    return to_msgpack((verb, argument))


def decode_control(frame: Frame) -> tuple[str, Any]:
    """Read a CONTROL frame: verb and argument.

    Raises:
        ProtocolError: the frame is malformed.
    """
    wire = _decoded(_decode_control, frame, "control call")
    return wire.verb, wire.argument


def encode_value(value: Any) -> bytes:
    """Encode the meta of a successful CONTROL_REPLY."""
    return to_msgpack(value)


def encode_failure(failure: Failure) -> bytes:
    """Encode the meta of a failed CONTROL_REPLY."""
    return to_msgpack(failure)


def decode_value(frame: Frame) -> Any:
    """Read a successful CONTROL_REPLY.

    Raises:
        ProtocolError: the frame is malformed.
    """
    return _decoded(_decode_any, frame, "reply")


def decode_failure(frame: Frame) -> Failure:
    """Read a failed CONTROL_REPLY.

    Raises:
        ProtocolError: the frame is malformed.
    """
    return _decoded(_decode_failure, frame, "error")


def encode_offer(offer: Offer) -> bytes:
    """Encode the meta of an OFFER."""
    return to_msgpack(offer)


def decode_offer(frame: Frame) -> Offer:
    """Read an OFFER.

    Raises:
        ProtocolError: the frame is malformed.
    """
    offer: Offer = _decoded(_decode_offer, frame, "offer")
    return offer


def _decoded(decode: Callable[[memoryview], _T], frame: Frame, what: str) -> _T:
    try:
        return decode(frame.meta)
    except UNDECODABLE as error:
        raise ProtocolError(f"malformed {what}: {error}") from error
