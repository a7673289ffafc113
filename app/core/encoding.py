"""Reports as msgpack and JSON: what is said about models and requests, to other processes and to people.

They may quote a model, a client or the name of a file: what UTF-8 cannot encode is escaped (`encodable`).
Requests and responses are refused for it instead (`app/transport/wire/messages.py`).
"""

import json
from typing import Any, Final, TypeVar

import msgspec

from app.core.errors import encodable

T = TypeVar("T")

_to_msgpack: Final = msgspec.msgpack.Encoder().encode
_to_json: Final = msgspec.json.Encoder().encode
_BYTES: Final = (bytes, bytearray, memoryview)


def to_msgpack(value: Any) -> bytes:
    """Encode a report.

    Raises:
        TypeError: it has a value without a msgpack encoding.
    """
    try:
        return _to_msgpack(value)
    except UnicodeEncodeError:
        return _to_msgpack(_escaped(msgspec.to_builtins(value, builtin_types=_BYTES)))


def to_json(value: Any) -> bytes:
    """Encode a report, as `to_msgpack`."""
    try:
        return _to_json(value)
    except UnicodeEncodeError:
        return _to_json(_escaped(msgspec.to_builtins(value, str_keys=True)))


def to_exact_json(value: Any) -> bytes:
    """Encode what another process is to have as it is, names of files that are no UTF-8 included."""
    return json.dumps(msgspec.to_builtins(value, str_keys=True)).encode()


def from_exact_json(data: bytes, kind: type[T]) -> T:
    """Decode what `to_exact_json` has encoded.

    Raises:
        ValueError: it is something else.
    """
    return msgspec.convert(json.loads(data), kind, str_keys=True)


def _escaped(value: Any) -> Any:
    """Return plain values with encodable texts."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {_escaped(key): _escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in value]
    return value
