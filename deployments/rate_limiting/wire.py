"""Messages between a replica and its node's arbiter: msgpack behind a length of four bytes.

Control calls of `app.transport.channel` would need more code: they do not report a lost client to the handler
and cannot be sent by the server. They would also cost a task at both ends per permit, and the arbiter would
import numpy (36 instead of 22 MiB).
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

from app.core.config.rate_limit import Demand

MAX_MESSAGE: Final = 1 << 20
_LENGTH: Final = 4
_encode = msgspec.msgpack.Encoder().encode


class Register(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Adds instances by number; a new arbiter gives permits to those `held`, which are executing."""

    request: int
    demands: dict[int, Demand]
    held: list[int] = []


class Unregister(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Removes an instance."""

    instance: int


class AcquireRequest(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """Requests a permit for an instance; `number` counts its requests."""

    instance: int
    number: int


class Release(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """Releases an instance's permit, or withdraws its request."""

    instance: int


class Registered(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """Answers `Register`; `error` is why the instances were refused, "" for success."""

    request: int
    error: str = ""


class Granted(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """Answers `AcquireRequest`."""

    instance: int
    number: int


ToArbiter = Register | Unregister | AcquireRequest | Release
ToReplica = Registered | Granted
M = TypeVar("M")


def frame(message: ToArbiter | ToReplica) -> bytes:
    """Encode a message with its length."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "little") + body


class Reader(Generic[M]):
    """Decodes messages from a stream of bytes."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[M]") -> None:
        self._decode = decoder.decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Append received bytes and yield the messages that are complete.

        Raises:
            ValueError: a message is malformed or longer than `MAX_MESSAGE`.
        """
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH:
            end = _LENGTH + int.from_bytes(buffer[:_LENGTH], "little")
            if end > _LENGTH + MAX_MESSAGE:
                raise ValueError("a message is too long")
            if len(buffer) < end:
                return
            body = bytes(buffer[_LENGTH:end])
            del buffer[:end]
            yield self._decode(body)
