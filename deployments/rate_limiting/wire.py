"""What a replica and its node's arbiter tell each other: msgpack messages behind their length."""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

from app.core.config.rate_limit import Demand

MAX_MESSAGE: Final = 1 << 20
_LENGTH: Final = 4
_encode = msgspec.msgpack.Encoder().encode


class Register(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Instances by number; `held` are executing, which a new arbiter does not know."""

    request: int
    demands: dict[int, Demand]
    held: list[int] = []


class Leave(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """An instance is no more."""

    instance: int


class AcquireRequest(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """An instance wants to execute; `wish` numbers its wishes."""

    instance: int
    wish: int


class Release(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """An instance has executed, or does not want to any more."""

    instance: int


class Enrolled(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """The answer to `Register`: why not, if not."""

    request: int
    error: str = ""


class Granted(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """The answer to `AcquireRequest`."""

    instance: int
    wish: int


ToArbiter = Register | Leave | AcquireRequest | Release
ToReplica = Enrolled | Granted
M = TypeVar("M")


def frame(message: ToArbiter | ToReplica) -> bytes:
    """The bytes of a message."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "little") + body


class Reader(Generic[M]):
    """Turns received bytes into messages."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[M]") -> None:
        self._decode = decoder.decode
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """The messages that are complete now.

        Raises:
            ValueError: what came is no message, or one that is too long.
        """
        received = self._bytes
        received += data
        while len(received) >= _LENGTH:
            end = _LENGTH + int.from_bytes(received[:_LENGTH], "little")
            if end > _LENGTH + MAX_MESSAGE:
                raise ValueError("a message is too long")
            if len(received) < end:
                return
            body = bytes(received[_LENGTH:end])
            del received[:end]
            yield self._decode(body)
